"""Defects of the reference library in schedules, masks, inits and configs, each by its number.

Each test fails if the defect comes back. Those of the life cycle and of training are in
``test_reference_defects.py``.
"""

import copy
import doctest
import importlib
import math
import pkgutil

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.layers import default_filter
from sparse_lib.masks.init import checkerboard, from_zeros
from sparse_lib.schedules.values import make_hyperparameter_schedule
from tests.sparse_lib.algorithm_cases import make_model, snapshot, train


def start(algorithm, model=None):
    model = model or make_model()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    return model, optimizer


@pytest.mark.parametrize("name", ["SET", "RigL"])
@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (
            {"type": "cosine", "init": 0.4, "half_period": 4},
            [0.2 + 0.2 * math.cos(math.pi * t / 4) for t in range(5)] + [0.0, 0.0],
        ),
        ([0.4, 0.2, 0.1], [0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]),
    ],
)
def test_defect_1_a_drop_fraction_anneals(name, spec, values):
    algorithm = getattr(sl, name)(0.5, {"freq": 1}, drop_fraction=spec)
    model, optimizer = start(algorithm)
    seen, update_mask = [], algorithm.update_mask

    def watch(p, mask, sparsity):
        seen.append(algorithm.drop_fraction)
        return update_mask(p, mask, sparsity)

    algorithm.update_mask = watch
    for step in range(1, 7):
        seen.clear()
        train(model, optimizer, 1, start=step)
        assert seen == pytest.approx([values[step]] * 3, abs=1e-12), step


def test_defect_2_a_list_resumes_where_it_was_and_the_state_is_left_alone():
    schedule = make_hyperparameter_schedule([0.1, 0.2, 0.3, 0.4])
    for _ in range(2):
        schedule.update(True)
    state = schedule.state_dict()
    before = copy.deepcopy(state)
    other = make_hyperparameter_schedule([0.1, 0.2, 0.3, 0.4])
    other.load_state_dict(state)
    assert (
        (other(9, True), other(9, False)) == (schedule(9, True), schedule(9, False)) == (0.3, 0.2)
    )
    other.update(True)
    assert state == before and schedule(9, True) == 0.3


def test_defect_3_the_drop_fractions_state_is_saved():
    def make():
        return sl.SET(0.5, 1, drop_fraction=[0.5, 0.3, 0.1, 0.0])

    algorithm, other = make(), make()
    model, optimizer = start(algorithm)
    train(model, optimizer, 1)
    start(other)
    assert algorithm.drop_fraction != other.drop_fraction
    other.load_state_dict(algorithm.state_dict())
    assert algorithm.drop_fraction == other.drop_fraction == 0.3


def test_defect_5_a_function_says_when_to_update():
    algorithm = sl.SET(0.5, update=lambda step: step == 2)
    model, optimizer = start(algorithm)
    counts = []
    train(model, optimizer, 3, after=lambda: counts.append(algorithm.num_updates))
    assert counts == [0, 1, 1]
    assert sl.configure({"algorithm": "set", "sparsity": 0.5, "update": lambda step: False})


def test_defect_6_functions_are_schedules():
    def typed(step: torch.Tensor, is_update_step: torch.Tensor) -> float:
        return 0.5 if is_update_step else 0.25

    one, two = make_hyperparameter_schedule(lambda step: step / 10), sl.schedules.Lambda(typed)
    assert (one(3), one(4, True)) == (0.3, 0.4)
    assert (two(3), two(3, True)) == (0.25, 0.5)
    algorithm = sl.GMP(typed, update=1)
    model, optimizer = start(algorithm)
    train(model, optimizer, 1)
    assert int(model[0].weight_mask.sum()) == 96


def test_defect_9_only_present_weights_compete_for_staying():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(100, generator=generator) < 0.3
        score = torch.zeros(100)  # present weights that are exactly zero, and absent ones
        smaller, count = sl.make_mask_drop_minimum(score, mask, 0.5)
        assert not (smaller & ~mask).any()
        assert count == int(smaller.sum()) == sl.num_nonzero(0.5, int(mask.sum()))


def test_defect_10_nothing_grows_where_the_gradient_is_nan():
    score = torch.tensor([math.nan, 1.0, math.nan, 0.5, -math.inf, 0.25])
    mask = torch.tensor([False, False, False, False, False, True])
    grown = sl.make_mask_grow_maximum(score, mask, 0.5)
    assert grown.tolist() == [False, True, False, True, False, True]
    assert not sl.make_mask_topk_sparsity(score, 0.5)[[0, 2]].any()
    algorithm = sl.RigL(0.5, 1, drop_fraction=0.5)
    model, optimizer = start(algorithm, nn.Linear(8, 4, bias=False))
    bad = torch.zeros(4, 8, dtype=torch.bool)
    bad[:, ::3] = True
    before = model.weight_mask.clone()
    (model.weight * torch.where(bad & ~before, math.nan, 1.0)).sum().backward()
    optimizer.step()
    assert not (model.weight_mask & ~before & bad).any()


@pytest.mark.parametrize(
    ("sparsity", "numel", "count"),
    [(0.8, 10, 2), (0.8, 100, 20), (0.8, 1000, 200), (0.95, 10, 1), (0.99, 100, 1), (0.9, 10, 1)],
)
@pytest.mark.parametrize("init_method", ["random", "topk", "checkerboard"])
def test_defect_11_counts_are_not_truncated(init_method, sparsity, numel, count):
    model = nn.Linear(numel, 1, bias=False)
    sl.Static(sparsity, init_method=init_method).apply(model)
    assert int(model.weight_mask.sum()) == count


@pytest.mark.parametrize("name", ["Static", "GMP", "SET", "RigL", "GraNet"])
def test_defect_12_a_small_tensor_keeps_a_weight(name):
    model = nn.Linear(3, 2, bias=False)
    algorithm = getattr(sl, name)(0.95)
    _, optimizer = start(algorithm, model)
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert int(model.weight_mask.sum()) == 1


@pytest.mark.parametrize("name", ["GMP", "SET", "RigL", "GraNet"])
def test_defect_18_a_module_without_bias_by_itself(name):
    model = nn.Linear(4, 4, bias=False)
    _, optimizer = start(getattr(sl, name)(0.5), model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert int(model.weight_mask.sum()) == 8


def test_defect_19_a_late_start_is_sparse_from_the_start():
    for name in ("gmp", "set", "rigl"):
        model = make_model()
        size = model[0].weight.detach().abs()
        config = {"algorithm": name, "sparsity": 0.5, "update": {"freq": 1, "start": 5}}
        sl.configure({**config, "init_method": "topk"}).apply(model)
        kept = model[0].weight_mask
        assert int(kept.sum()) == 96 and size[kept].min() >= size[~kept].max()
    dense = make_model()
    sl.configure({**config, "compat": "cstorch-2.10"}).apply(dense)
    assert dense[0].weight_mask.all()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "nothing", "sparsity": 0.5}, "algorithm 'nothing' is unknown"),
        ({"algorithm": "gmp", "schedule": {"type": "cubik"}}, "unknown type 'cubik'"),
        ({"algorithm": "rigl"}, "needs a sparsity"),
        ({"algorithm": "set", "sparsity": {"value": 0.5}}, "sparsity"),
    ],
)
def test_defect_26_mistakes_are_sentences(config, words):
    with pytest.raises(ValueError, match=words):
        sl.configure(config)


def test_defect_27_examples_in_docstrings_run():
    schedule = {"type": "exp", "init": 0.0, "gamma": -0.5}
    algorithm = sl.GMP(schedule=schedule, update={"freq": 1})
    assert algorithm.sparsity["x"](2) == pytest.approx(1 - math.exp(-1))
    with pytest.raises(ValueError, match="not both"):
        sl.GMP(0.5, schedule=schedule)
    num_examples = 0
    for module in pkgutil.walk_packages(sl.__path__, "sparse_lib."):
        if module.name.split(".")[1] in ("device", "ift", "optim"):
            continue  # rooms of their own; torch's docstrings
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
        num_examples += result.attempted
    assert num_examples + doctest.testmod(sl).attempted > 15


@pytest.mark.parametrize("sparsity", [0, 1, 0.0])
def test_defect_28_integers_and_a_start_alone_are_fine(sparsity):
    model = make_model()
    sl.configure({"sparsity": sparsity}).apply(model)
    assert bool(model[0].weight_mask.any()) == (sparsity == 0)
    late = sl.configure({"algorithm": "set", "sparsity": 0.5, "update": {"start": 10}})[0]
    assert [t for t in range(13) if late.is_update_step(t)] == [10, 11, 12]


@pytest.mark.parametrize("shape", [(4, 6), (8,), (3, 2, 2, 2)])
def test_defect_29_checkerboard_at_the_ends(shape):
    weight = torch.ones(shape)
    assert not checkerboard(weight, 1.0).any() and checkerboard(weight, 0.0).all()


@pytest.mark.parametrize("key", ["balance_in_groups", "balance_out_groups"])
def test_defect_29_30_balanced_groups_fit_convolutions_and_are_checked_for_each(key):
    model = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.Conv2d(8, 4, 3, bias=False))
    sl.RigL(0.5, **{key: 2}).apply(model)
    for layer in model:
        parts = layer.weight_mask.chunk(2, 1 if "in" in key else 0)
        assert len({int(part.sum()) for part in parts}) == 1
    odd = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(3, 3, bias=False))
    with pytest.raises(ValueError, match="num_groups=2 does not divide"):
        sl.RigL(0.5, **{key: 2}).apply(odd)


def test_defect_30_growth_in_groups_counts_each_group():
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[0, :4] = True
    score = torch.arange(16.0).view(2, 8)
    shaper = sl.OutputGroupScoreShaper(2)
    for known in (None, 4):
        grown = sl.make_mask_grow_maximum(score, mask, 0.5, mask_nonzero=known, score_shaper=shaper)
        assert grown.sum(1).tolist() == [4, 4]


def test_defect_32_a_list_stays_at_its_last_value_and_reports_what_is():
    algorithm = sl.GMP([0.25, 0.5], update={"freq": 2}, init_method="topk")
    levels, targets = [], []
    algorithm.register_target_sparsity_hook(lambda a, name, target: targets.append(target))
    model, optimizer = start(algorithm)
    train(
        model,
        optimizer,
        8,
        after=lambda: levels.append(1 - int(model[0].weight_mask.sum()) / 192),
    )
    assert levels == [0.25] + [0.5] * 7
    assert targets == levels


@pytest.mark.parametrize(
    ("name", "is_sparse"),
    [
        ("model.embed_tokens.weight", False),
        ("transformer.wte.weight", False),
        ("transformer.wpe.weight", False),
        ("transformer.ln_f.weight", False),
        ("lm_head.weight", False),
        ("classifier.weight", False),
        ("score.weight", False),
        ("decoder.embedding_layer.word_embeddings.weight", False),
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("transformer.h.0.attn.c_attn.weight", True),
        ("encoder.heads_mixer.weight", True),
    ],
)
def test_defect_33_the_default_filter_knows_other_libraries_names(name, is_sparse):
    assert default_filter(name, torch.ones(4, 4)) == is_sparse


def test_defect_34_half_precision_does_not_make_ties():
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    sl.Static(0.9).apply(model)
    halves = model.weight_mask.flatten().view(2, -1).sum(1).float()
    assert int(halves.sum()) == sl.num_nonzero(0.9, 4096) == 410
    # Ties by index would favour the first half; 4 standard deviations of a fair split are 40.
    assert abs(float(halves[0] - halves[1])) < 80
    counts = []
    for seed in range(30):
        sl.Static(0.9, seed=seed).apply(layer := nn.Linear(64, 64, bias=False).bfloat16())
        counts.append(float(layer.weight_mask[:32].sum()) / 410)
    assert sum(counts) / 30 == pytest.approx(0.5, abs=0.02)


def test_defect_35_update_without_arguments_and_autoupdate_of_members():
    static = sl.Static(0.5)
    static.apply(make_model())
    assert static.update() is None
    group = sl.Group({"0.*": sl.SET(0.5, 1), "*": sl.SET(0.5, 1)})
    group[0].autoupdate = False
    model, optimizer = start(group)
    before = snapshot(model)
    train(model, optimizer, 2)
    assert torch.equal(before["0.weight_mask"], model[0].weight_mask)
    assert not torch.equal(before["2.weight_mask"], model[2].weight_mask)


def test_defect_36_distributions_structures_schedules_and_measures():
    def counts(**options):
        model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 8, bias=False))
        group = sl.configure({"sparsity": 0.5, "param_filter": "*", **options})
        group.apply(model)
        return model, [s.mask.sum().item() for s in group.sparse_params.values()]

    uniform, erk = counts()[1], counts(distribution="erk")[1]
    assert uniform == [512, 128] and sum(erk) == 640 and erk[1] > 128
    assert sum(counts(distribution="global", init_method="topk")[1]) == 640
    model, _ = counts(score_shaper="2:4")
    assert set(model[0].weight_mask.view(-1, 4).sum(1).tolist()) == {2}
    model, _ = counts(score_shaper={"type": "block", "block": 4})
    tiles = model[0].weight_mask.view(8, 4, 8, 4).sum((1, 3))
    assert set(tiles.flatten().tolist()) == {0, 16}
    assert make_hyperparameter_schedule(
        {"type": "polynomial", "init": 0.0, "final": 0.8, "start": 0, "stop": 10}
    )(5) == pytest.approx(0.8 * 7 / 8)
    inputs = {"input": torch.ones(3, 8)}
    flops = sl.count_flops(nn.Linear(8, 4), batch_size=3, inputs=inputs)
    assert flops.forward({"weight": 0.5}) == 2 * 3 * 16
    algorithm = sl.SET(0.5, 1)
    model, optimizer = start(algorithm)
    train(model, optimizer, 3)
    fired = algorithm.metrics()["tensors"]["0.weight"]["itop"]
    assert 0.5 < fired <= 1


# Slips of the documents and of older code


@pytest.mark.parametrize("interval", [1, 10, 1000, None])
def test_slip_cubic_of_the_announcement(interval):
    cubic = sl.schedules.Cubic(0.5, 0.8, 20, 25, interval)
    lowest = 0.8 if interval == 1000 else 0.5  # both ends in one interval: no division by zero
    assert cubic.get_min_max_end(0, 1000) == (lowest, 0.8, 0.8)
    values = [cubic(step) for step in range(2000)]
    assert all(0.5 <= value <= 0.8 for value in values)
    assert values == sorted(values)


def test_slip_sideband_is_topk_by_default_and_seeded_by_name():
    assert sl.configure({"type": "sideband", "sparsity": 0.5})[0].init_method == "topk"
    config = {"type": "sideband", "sparsity": 0.5, "init_method": "random", "seed": 3}
    short = nn.ModuleDict({"fc_b": nn.Linear(8, 8)})
    longer = nn.ModuleDict({"fc_a": nn.Linear(8, 8), "fc_b": nn.Linear(8, 8)})
    for model in (short, longer):
        sl.configure(config).apply(model)
    assert torch.equal(short["fc_b"].weight_mask, longer["fc_b"].weight_mask)
    assert not torch.equal(longer["fc_a"].weight_mask, longer["fc_b"].weight_mask)


def test_slip_from_zeros_takes_zeros_and_nan_as_absent_and_infinity_as_present():
    weight = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30])
    assert from_zeros(weight, 0.9).tolist() == [False, False, False, True, True, True]


def test_slip_finalize_names_masked_parameters_only_and_keeps_infinity():
    model = make_model()
    sl.configure({"sparsity": 0.5, "param_filter": "0.weight", "init_method": "topk"}).apply(model)
    position = tuple(model[0].weight_mask.nonzero()[0].tolist())
    with torch.no_grad():
        model[0].weight[position] = math.inf
    masks = sl.finalize(model)
    assert list(masks) == ["0.weight"] and model[0].weight[position] == math.inf


def test_slip_a_constant_means_the_same_for_each_group_and_at_the_top():
    top = sl.configure({"type": "gmp", "sparsity": 0.5, "schedule": 2})
    group = sl.configure(
        {"type": "gmp", "schedule": 2, "param_name_patterns": {"weight": {"sparsity": 0.5}}}
    )
    assert [g[0].sparsity["x"](step) for g in (top, group) for step in (0, 9)] == [0.5] * 4


def test_slip_first_means_the_first():
    first = sl.make_mask_topk_sparsity(torch.ones(10), 0.7, tie_breaker="first")
    assert first.nonzero().flatten().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"^fc", {"fc.weight", "fcx.weight"}),
        (r"fc\.w", {"fc.weight", "a.fc.weight"}),
        (r"^fc\.|^b", {"fc.weight", "b.weight"}),
        (r"x.*weight$", {"fcx.weight"}),
    ],
)
def test_slip_regular_expressions_stay_regular_expressions(pattern, names):
    layer = nn.Linear(2, 2, bias=False)
    model = nn.ModuleDict(
        {
            "fc": copy.deepcopy(layer),
            "fcx": copy.deepcopy(layer),
            "b": copy.deepcopy(layer),
            "a": nn.ModuleDict({"fc": copy.deepcopy(layer)}),
        }
    )
    group = sl.configure({"type": "static", "sparsity": 0.5, "param_name_patterns": pattern})
    group.apply(model)
    assert set(group.sparse_params) == names
