"""First masks: exact counts, seeds, signatures users write, pruned models and empty tensors."""

import functools
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sparse_lib as sl
from sparse_lib.compat.rules import CSTORCH
from sparse_lib.masks.counts import num_nonzero
from sparse_lib.masks.init import INIT_METHODS, make_init_method
from sparse_lib.masks.makers import generator
from sparse_lib.masks.shapers import InputGroupScoreShaper, OutputGroupScoreShaper
from tests.cases import ALGORITHMS, assert_enforced, descend, driven, fit, make

COUNTING = ["random", "topk", "checkerboard", "snip"]


def weight(*shape, dtype=torch.float32):
    param = torch.nn.Parameter(torch.randn(shape, generator=generator(0, "test", 0)).to(dtype))
    param.grad = torch.randn(shape, generator=generator(0, "test", 1)).to(dtype)
    return param


@pytest.mark.parametrize("name", COUNTING)
@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 100))
def test_counts_are_exact(name, shape, percent):
    mask = make_init_method(name)(weight(*shape), percent / 100, None, generator(0, "w", 0))
    assert mask.dtype == torch.bool and list(mask.shape) == shape
    assert mask.sum() == num_nonzero(percent / 100, mask.numel())


@pytest.mark.parametrize("name", COUNTING)
def test_shapers_and_compat(name):
    method = make_init_method(name)
    mask = method(weight(8, 12), 0.75, InputGroupScoreShaper(4), generator(0, "w", 0))
    assert mask.reshape(8, 4, 3).sum((0, 2)).tolist() == [6, 6, 6, 6]
    peer = pickle.loads(pickle.dumps(make_init_method(name, compat=CSTORCH)))
    assert peer(weight(10, 1), 0.95, None, generator(0, "w", 0)).sum() == 0


def test_each_method_by_hand():
    param = torch.tensor([[-9.0, 8, 7], [1, -2, 3]])
    assert make_init_method("topk")(param, 0.5).tolist() == [[True] * 3, [False] * 3]
    balanced = make_init_method("balanced_topk")(param, 2 / 3)
    assert balanced.tolist() == [[True, False, False], [False, False, True]]
    param = torch.tensor([0.0, -0.0, float("nan"), 1e-30, 2.0, float("inf"), -float("inf")])
    mask = make_init_method("from_zeros", compat=CSTORCH)(param, 0.9)
    assert mask.tolist() == [False] * 3 + [True] * 4
    board = make_init_method("checkerboard")(torch.empty(4, 4), 0.5)
    assert torch.equal(board[0], ~board[1]) and torch.equal(board[0], board[2])
    assert (board[:, 1:] != board[:, :-1]).all()
    assert make_init_method("checkerboard")(torch.empty(4, 4), 1.0).sum() == 0
    columns = make_init_method("checkerboard")(torch.empty(20, 10), 0.8).sum(0)
    assert columns.min() >= 3 and columns.max() <= 5  # evenly spread, not in columns
    param = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0, 4.0]))
    with pytest.raises(ValueError, match="'snip' needs gradients"):
        make_init_method("snip")(param, 0.5)
    param.grad = torch.tensor([4.0, 3.0, 1.0, 0.0])
    assert make_init_method("snip")(param, 0.5).tolist() == [True, True, False, False]


SHAPER, CPU, PRIVATE = OutputGroupScoreShaper(2), torch.device("cpu"), generator(0, "weight", 0)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda p, s: (p > 0, s), (0.5,)),
        (lambda p, sparsity, score_shaper: ((p > 0).float(), score_shaper), (SHAPER,)),
        (lambda p, s, shaper, device: ((p > 0).to(torch.uint8), shaper, device), (SHAPER, CPU)),
        (lambda p, s, score_shaper, generator: (p > 0, generator), (PRIVATE,)),
        (lambda p, s, keep=3: (p > 0, keep), (3,)),  # its own default, and those of what is there
        (lambda p, s, generator=None, k=2.0, score_shaper=None: (p > 0, generator, k, score_shaper),
         (PRIVATE, 2.0, SHAPER)),
    ],
)  # fmt: skip
def test_a_users_function_gets_what_it_names(function, given):
    seen = []

    @functools.wraps(function)
    def noted(*arguments, **named):
        mask, *found = function(*arguments, **named)
        seen.extend(found)
        return mask

    layer = torch.nn.Linear(4, 4, bias=False)
    expected = layer.weight > 0
    sl.Static(0.5, noted, score_shaper=SHAPER, seed=0).apply(layer)
    assert torch.equal(layer.weight_mask, expected)
    for value, wanted in zip(seen, given, strict=True):
        seed = getattr(value, "initial_seed", None)
        assert seed() == wanted.initial_seed() if seed else repr(value) == repr(wanted)
    assert make_init_method(INIT_METHODS["topk"]) is INIT_METHODS["topk"]


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("topkk", ValueError, "'topkk'.*'topk'"),
        (3, TypeError, "init_method.*3"),
        (lambda p: p, ValueError, "2 to 4 arguments"),
        (lambda a, b, c, d, e: a, ValueError, "2 to 4 arguments"),
        (lambda a, b, *, c: a, ValueError, "2 to 4 arguments"),
        (lambda p, s: torch.ones(3), ValueError, r"shape \(2, 2\), not \(3,\)"),
        (lambda p, s: None, ValueError, "NoneType"),
        (lambda p, s: torch.full((2, 2), 0.5), ValueError, "zeros and ones"),
    ],
)
def test_bad_methods_are_named(spec, error, message):
    with pytest.raises(error, match=message):
        make_init_method(spec)(torch.ones(2, 2), 0.5)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_layer_of_width_zero_is_left_out(name):
    model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 0), nn.Linear(0, 4), nn.Linear(8, 4)])
    optimizer = driven(algorithm := make(name), model, torch.optim.AdamW, 0.01)
    assert set(algorithm.sparse_params) == {"0.weight", "0.bias", "2.bias", "3.weight", "3.bias"}
    for step in range(4):
        hidden = model[0](torch.ones(2, 8) + step)
        wide = model[2](model[1](hidden)) + model[3](hidden)
        descend(optimizer, wide.square().sum())
    assert algorithm.step == 4
    assert_enforced(algorithm, optimizer)


def pruned(sparsity=0.7):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False))
    sl.Static(sparsity, "topk").apply(model)
    sl.finalize(model)
    return model


def test_a_pruned_model_becomes_2_4_and_keeps_its_zeros():
    model = pruned()
    before = [param.detach().clone() for param in model.parameters()]
    algorithm = sl.Static(init_method="from_zeros", score_shaper="2:4")
    optimizer = driven(algorithm, model)
    fit(model, optimizer, (torch.randn(16, 32) for _ in range(3)))
    for weight, sparse in zip(before, algorithm.sparse_params.values(), strict=True):
        groups = weight.abs().view(-1, 4)
        largest = torch.zeros_like(groups, dtype=torch.bool)
        largest.scatter_(1, groups.topk(2).indices, True)
        expected = largest.view_as(weight) & (weight != 0)
        assert torch.equal(sparse.mask, expected)
        assert not sparse.param[weight == 0].any()


def test_a_second_algorithm_on_masks_says_how_to_go_on_from_the_zeros():
    model = pruned()
    sl.Static(init_method="from_zeros").apply(model)
    second = sl.GMP(0.9, init_method="from_zeros")
    said = (
        r"already sparsified by Static; .*finalize\(model\) .*init_method='from_zeros'; .*densify"
    )
    with pytest.raises(ValueError, match=said):
        second.apply(model)
    third = sl.GMP(0.5, score_shaper="2:4")
    sl.keep_zeros(unowned := pruned()).detach()
    with pytest.raises(ValueError, match=r"already, which is not 2:4; .*finalize\(model\)"):
        third.apply(unowned)
    sl.finalize(model)
    zeros = [param == 0 for param in model.parameters()]
    second.apply(model)
    for zero, sparse in zip(zeros, second.sparse_params.values(), strict=True):
        assert torch.equal(sparse.mask, ~zero)


@pytest.mark.parametrize("settings", [{}, {"distribution": "global"}])
def test_weights_that_are_nan_stay_for_the_loss_to_show(settings):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        model[0].weight[3, 1:6] = math.nan
    sl.Static(0.5, "topk", **settings).apply(model)
    assert model[0].weight_mask[3, 1:6].all() and model(torch.ones(1, 8)).isnan().all()
    assert sum(int(layer.weight_mask.sum()) for layer in model) == 64
