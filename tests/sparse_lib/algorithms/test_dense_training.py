"""Algorithms that train masked weights too, against steps computed by hand."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import descend, driven


def step(layer, optimizer, gradient):
    layer.weight.grad = torch.tensor(gradient)
    optimizer.step()


def start(algorithm, values, rate=1.0, **options):
    layer = nn.Linear(len(values[0]), len(values), bias=False)
    layer.weight.data = torch.tensor(values)
    return layer, driven(algorithm, layer, torch.optim.SGD, rate, **options)


def test_topk_takes_what_the_optimizer_wrote_at_masked_places_by_dense_states():
    layer, optimizer = start(sl.TopK(0.5), [[4.0, 3.0, 2.0, 1.0]])
    assert layer.weight.tolist() == [[4, 3, 0, 0]]
    # From masked zeros to -5 and 1: the larger one is in at once, with its value.
    step(layer, optimizer, [[0.0, 2.0, 5.0, -1.0]])
    assert layer.weight.tolist() == [[4, 0, -5, 0]]
    # 3 - 2 = 1 was dropped at once; what the mask hides is gone, unlike with Top-KAST.
    step(layer, optimizer, [[0.0, -4.5, 0.0, 0.0]])
    assert layer.weight.tolist() == [[0, 4.5, -5, 0]]
    layer, optimizer = start(sl.TopK(0.5), [[4.0, 3.0, 2.0, 1.0]], momentum=0.5)
    step(layer, optimizer, [[0.0, 0.0, 0.0, 1.0]])
    assert optimizer.state[layer.weight]["momentum_buffer"].tolist() == [[0, 0, 0, 1]]
    assert layer.weight.tolist() == [[4, 3, 0, 0]]
    step(layer, optimizer, [[0.0, 0.0, 0.0, 3.0]])  # momentum 3.5
    assert layer.weight.tolist() == [[4, 0, 0, -3.5]]


def test_topk_keeps_the_best_weights_of_each_output_and_input():
    values = [[9.0, 8.0, 7.0, 6.0], [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]
    algorithm = sl.TopK(0.5, min_per_output=1, update=1)
    layer, optimizer = start(algorithm, values, rate=0.0)
    step(layer, optimizer, torch.zeros(3, 4).tolist())
    assert layer.weight_mask.int().tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1]]
    both = sl.TopK(0.5, min_per_output=1, min_per_input=1, update=1)
    values = [[9.0, 8.0, 7.0, 0.0], [6.0, 5.0, 4.0, 0.0], [0.1, 0.2, 0.3, 0.4]]
    layer, optimizer = start(both, values, rate=0.0)
    step(layer, optimizer, torch.zeros(3, 4).tolist())
    assert int(layer.weight_mask.sum()) == 6 and layer.weight_mask[2, 3]
    assert layer.weight_mask.any(0).all() and layer.weight_mask.any(1).all()


@pytest.mark.parametrize(
    ("gradient", "expected"), [([3.0, 4.0], [-1.5, -2.0]), ([0.3, 0.4], [-0.3, -0.4])]
)
def test_topk_clips_the_root_mean_square(gradient, expected):
    # rms of (3, 4) is sqrt(12.5); the limit is half of it.
    limit = 12.5**0.5 / 2
    layer, optimizer = start(sl.TopK(0.0, gradient_rms=limit), [[0.0, 0.0]])
    step(layer, optimizer, [gradient])
    assert layer.weight.tolist()[0] == pytest.approx(expected)


def test_topkast_trains_the_backward_set_alone_and_regularizes_by_density():
    algorithm = sl.TopKAST(0.75, update={"freq": 2}, backward_sparsity=0.5)
    layer, optimizer = start(algorithm, [[4.0, 3.0, 2.0, 1.0]], weight_decay=0.5)
    assert layer.weight.tolist() == [[4, 0, 0, 0]]
    assert algorithm.trained(layer.weight).int().tolist() == [[1, 1, 0, 0]]
    step(layer, optimizer, [[1.0, -2.0, 9.0, 9.0]])
    # 4 - 1 - 2, 3 + 2 - 1.5; the others rest, decay included.
    assert algorithm.hidden_weight(layer.weight).tolist() == [[1, 3.5, 2, 1]]
    assert layer.weight.tolist() == [[1, 0, 0, 0]]
    step(layer, optimizer, [[-0.5, 0.0, 0.0, 0.0]])  # 1 + 0.5 - 0.5, 3.5 - 1.75; then masks
    assert algorithm.hidden_weight(layer.weight).tolist() == [[1, 1.75, 2, 1]]
    assert layer.weight.tolist() == [[0, 0, 2, 0]]
    assert algorithm.trained(layer.weight).int().tolist() == [[0, 1, 1, 0]]
    algorithm = sl.TopKAST(0.75, update=9, backward_sparsity=0.5, regularization=0.1)
    layer, optimizer = start(algorithm, [[4.0, 3.0, 2.0, 1.0]])
    step(layer, optimizer, [[0.0, 0.0, 0.0, 0.0]])
    expected = [4 - 0.4, 3 - 0.1 * 3 / 0.25, 2, 1]
    assert algorithm.hidden_weight(layer.weight).tolist()[0] == pytest.approx(expected)


def test_srste_decays_hidden_weights_and_misses_them_in_a_state():
    algorithm = sl.SRSTE(0.5, score_shaper="2:4", decay=0.1)
    values = [[4.0, 3.0, 2.0, 1.0, 1.0, 2.0, 3.0, 4.0]]
    layer, optimizer = start(algorithm, values, momentum=0.9)
    assert layer.weight.tolist() == [[4, 3, 0, 0, 0, 0, 3, 4]]
    step(layer, optimizer, [[0.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    whole = algorithm.hidden_weight(layer.weight).tolist()[0]
    assert whole == pytest.approx([4, 3, 2 + 2 - 0.2, 0.9, 0.9, 1.8, 3, 4])
    assert layer.weight.tolist()[0] == pytest.approx([4, 0, 3.8, 0, 0, 0, 3, 4])
    momentum = optimizer.state[layer.weight]["momentum_buffer"].tolist()[0]
    assert momentum == pytest.approx([0, 0, -1.8, 0.1, 0.1, 0.2, 0, 0])
    algorithm = sl.SRSTE(0.5, seed=0)
    start(algorithm, [[4.0, 3.0, 2.0, 1.0]])
    with pytest.raises(ValueError, match="whole=None, which must be a mapping"):
        algorithm.load_state_dict({"step": 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda: sl.SRSTE(0.5, decay=0.1),
        lambda: sl.TopKAST(0.75, backward_sparsity=0.5, regularization=0.1),
        lambda: sl.RigL(0.5, update=1, seed=0, grown_init="gradient"),
    ],
)
def test_an_optimizer_that_maximizes_ends_where_one_of_the_negative_does(make):
    values, ends = torch.randn(8, 8).tolist(), []
    for sign in (1, -1):
        layer, optimizer = start(make(), values, 0.1, maximize=sign < 0)
        for _ in range(3):
            descend(optimizer, sign * layer(torch.eye(8)).square().sum())
        ends.append(layer.weight.detach().clone())
    assert torch.equal(*ends)


def test_acdc_alternates():
    algorithm = sl.ACDC(0.5, update={"freq": 2, "stop": 7})
    layer, optimizer = start(algorithm, [[4.0, 3.0, 2.0, 1.0]])
    seen = []
    for _ in range(8):
        step(layer, optimizer, [[0.0, 0.0, 0.0, -0.5]])
        seen.append(int(layer.weight_mask.sum()))
    assert seen == [4, 2, 2, 4, 4, 2, 2, 2]
    assert algorithm.compressed
    # 1, 1.5, 2 (ties with the third, which comes first): compressed away; back from 0: 0, 0.5, 1.
    assert layer.weight.tolist() == [[4, 3, 0, 0]]


def test_srigl_has_one_fan_in_and_ablates_for_good():
    layer = nn.Linear(16, 12, bias=False)
    algorithm = sl.SRigL(0.75, update=1, drop_fraction=0.5, ablation=0.6, seed=1)
    optimizer = driven(algorithm, layer, lr=0.05)
    assert set(layer.weight_mask.sum(1).tolist()) == {4}
    with torch.no_grad():
        layer.weight[0] *= 1e-3  # too weak to have salient weights
    ablated = torch.zeros(12, dtype=torch.bool)
    for seed in range(4):
        data = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        scale = torch.ones(12).index_fill_(0, torch.tensor([0]), 1e-6)
        descend(optimizer, (layer(data) * scale).sin().pow(2).sum())
        counts = layer.weight_mask.sum(1)
        assert not counts[ablated].any()
        ablated |= counts == 0
        active = counts[counts > 0]
        assert len(set(active.tolist())) == 1
        assert int(active[0]) == 48 // len(active)
    assert ablated[0] and not ablated.all()


@pytest.mark.parametrize("sparsity", [0.99, 0.95])
def test_srigl_stays_within_its_weights_where_outputs_are_more(sparsity):
    layer = nn.Linear(8, 64, bias=False)
    optimizer = driven(sl.SRigL(sparsity, update=1, seed=1), layer, lr=0.05)
    asked = sl.masks.num_nonzero(sparsity, 512)
    for _ in range(3):
        assert 0 < int(layer.weight_mask.sum()) <= asked
        descend(optimizer, layer(torch.ones(2, 8)).sum())


def test_srigl_keeps_as_many_outputs_as_its_weights_need():
    layer = nn.Linear(12, 8, bias=False)
    optimizer = driven(sl.SRigL(0.5, update=1, ablation=0.95, seed=1), layer, lr=0.05)
    for _ in range(4):  # four outputs can have the 48 weights, and then have no place to grow
        descend(optimizer, (layer.weight * torch.randn(8, 12)).sum())
        counts = layer.weight_mask.sum(1)
        assert int(counts.sum()) == 48 - 48 % int((counts > 0).sum())


def test_srigl_counts_no_dropped_weight_as_salient():
    values = [
        [0.1, 0.2, 0.3, 0.0],
        [0.1, 0.2, 0.3, 0.0],
        [0.1, 0.2, 5.0, 0.0],
        [0.1, 4.0, 6.0, 0.0],
    ]
    algorithm = sl.SRigL(0.25, 1, "topk", drop_fraction=0.75, ablation=0.95)
    layer, optimizer = start(algorithm, values, rate=0.0)
    # 4, 5 and 6 survive, and each output has one place to grow: 1, 1, 2 and 3 are salient.
    step(layer, optimizer, [[1.0] * 4] * 4)
    assert layer.weight_mask.sum(1).tolist() == [4, 0, 4, 4]


def test_minima_and_sparsities_that_cannot_be_are_told():
    for kind, sparsity, options, words, each in (
        (sl.TopK, 0.5, {"min_per_output": 9}, "output is 9, but 'weight' has 8 weights in each", 2),
        (sl.SRSTE, 0.3, {"score_shaper": "2:4"}, "is 0.50, not 0.30, since NMScore", 2),
        (sl.Static, 0.8, {"score_shaper": "2:4"}, "is 0.75, not 0.80, since NMScore", 1),
    ):
        layer = nn.Linear(8, 8, bias=False)
        with pytest.warns(UserWarning, match=words):
            kind(sparsity, **options).apply(layer)
        assert int(layer.weight_mask.sum()) == 16 * each
    with pytest.warns(UserWarning, match="first update is due after step 9, and updates stop at 9"):
        sl.RigL(0.8, update={"freq": 9, "stop": 9})
