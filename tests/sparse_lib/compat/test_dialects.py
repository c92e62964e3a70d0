"""Configs of older documents: sideband YAML, cstorch 2.0 and 2.1; and rules of another library."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.compat.rules import CSTORCH
from sparse_lib.masks.makers import make_masks_global_topk
from sparse_lib.rules import EXACT, Rules, rules_of
from tests.cases import driven, make_model, train


class FcLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 10)
        self.fc_layers = nn.ModuleList([nn.Linear(10, 10), nn.Linear(10, 10)])
        self.norm = nn.LayerNorm(10)
        self.final_layer = nn.Linear(10, 10)


def sparsified(config, model=None):
    model, group = model or FcLayers(), sl.configure(config)
    group.apply(model)
    return model, {name: round(s.sparsity, 6) for name, s in group.sparse_params.items()}


FC = {"fc_layers.0.weight": 0.3, "fc_layers.1.weight": 0.3}
SEEDED = {"type": "sideband", "sparsity": 0.3, "init_method": "random", "seed": 1234}
IGNORED = {"dump_masks": False, "add_summaries": True}
FINAL = {"sparsity": 0.4, "init_method": "random", "seed": 7}
EACH = {"fc_layers.*weight": {"sparsity": 0.3}, "final_layer.*weight": FINAL}
SEVERAL = SEEDED | {"init_method": "topk", "param_name_patterns": ["fc_l.*weight", "^final.*t$"]}
SIDEBAND = {
    "by the default filter": (SEEDED | IGNORED, FC | {"final_layer.weight": 0.3}),
    "one pattern": ({**SEEDED, "param_name_patterns": "fc_layers.*weight"}, FC),
    "several patterns": (SEVERAL, FC | {"final_layer.weight": 0.3}),
    "settings for each pattern": (
        {"type": "sideband", "param_name_patterns": EACH},
        FC | {"final_layer.weight": 0.4},
    ),
}


@pytest.mark.parametrize("form", SIDEBAND)
@pytest.mark.parametrize("outer", [True, False])
def test_sideband_configs(form, outer):
    config, expected = SIDEBAND[form]
    model = FcLayers()
    size = model.fc_layers[0].weight.detach().abs().clone()
    _, got = sparsified({"sparsity": config} if outer else config, model)
    assert got == expected
    assert sl.configure(config)[0].seed == config.get("seed")
    is_random = config.get("init_method") == "random"
    mask = model.fc_layers[0].weight_mask
    assert bool(size[mask].min() >= size[~mask].max()) != is_random


@pytest.mark.parametrize(("key", "dim"), [("out_groups", 0), ("in_groups", 1)])
def test_sideband_groups_are_balanced(key, dim):
    config = {"type": "sideband", "sparsity": 0.5, key: 4}
    model, _ = sparsified(config, nn.ModuleDict({"x": nn.Linear(8, 8)}))
    assert [int(part.sum()) for part in model["x"].weight_mask.chunk(4, dim)] == [8] * 4
    with pytest.raises(ValueError, match="in_groups or out_groups, not both"):
        sl.configure({**config, "in_groups": 2, "out_groups": 2})


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (7, [0, 7, 14]),
        ([3, 5], [3, 5]),
        ({"freq": 6, "start": 1, "stop": 13}, [1, 7]),
        ({"start": 2}, [2]),  # every 1000 steps
        ({"steps": [4]}, [4]),
        (lambda step: step == 9, [9]),
    ],
)
def test_schedule_beside_a_sparsity_is_when_to_update(schedule, steps):
    old = sl.configure({"type": "set", "sparsity": 0.5, "schedule": schedule})[0]
    assert [t for t in range(15) if old.is_update_step(t)] == steps


def test_pairs_of_a_step_and_a_sparsity():
    pairs = sl.configure({"type": "gmp", "sparsity_schedule": [[3, 0.1], [5, 0.2]]})[0]
    new = sl.configure({"algorithm": "gmp", "schedule": [0.1, 0.2], "update": {"steps": [3, 5]}})[0]
    for algorithm in (pairs, new):
        assert [t for t in range(9) if algorithm.is_update_step(t)] == [3, 5]
        assert algorithm.sparsity["x"].values == [0.1, 0.2]


@pytest.mark.parametrize(
    ("spec", "name"),
    [({"type": "random", "eps": 1e-6}, "random"), ("first", "first"), (None, "first")],
)
def test_tiebreak_is_the_tie_breaker(spec, name):
    old = {"type": "gmp", "sparsity": [0.5], "schedule": 1, "tiebreak": spec}
    group, model = sl.configure(old), make_model()
    assert group[0].tie_breaker == name
    nn.init.ones_(model[0].weight)
    group.apply(model)
    group.update()
    assert int(model[0].weight_mask.sum()) == 96


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"^fc", {"fc.weight", "fcx.weight"}),
        (r"fc\.w", {"fc.weight", "a.fc.weight"}),
        (r"^fc\.|^b", {"fc.weight", "b.weight"}),
        (r"x.*weight$", {"fcx.weight"}),
    ],
)
def test_name_patterns_are_regular_expressions_that_are_searched(pattern, names):
    layers = {name: nn.Linear(2, 2, bias=False) for name in ("fc", "fcx", "b")}
    model = nn.ModuleDict({**layers, "a": nn.ModuleDict({"fc": nn.Linear(2, 2, bias=False)})})
    config = {"type": "static", "sparsity": 0.5, "param_name_patterns": pattern}
    assert sparsified(config, model)[1].keys() == names


ALL = sl.GMP, sl.SET, sl.RigL, sl.GraNet


def test_names_objects_and_the_distributions_that_rules_have():
    assert rules_of(None) is EXACT and rules_of("cstorch-2.10") is rules_of(CSTORCH) is CSTORCH
    for unknown in ("2.9", 3, [], {}):
        with pytest.raises(ValueError, match=r"compat must be None or 'cstorch-2.10', not "):
            rules_of(unknown)
    sl.Static(0.5, distribution="uniform", compat="cstorch-2.10").apply(make_model())
    with pytest.raises(ValueError, match="'erk' is not known to compat='cstorch-2.10'"):
        sl.Static(0.5, distribution="erk", compat="cstorch-2.10")


@pytest.mark.parametrize("cls", [sl.Static, *ALL])
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_counts_are_those_of_the_rules_also_in_a_copy(cls, clone):
    for compat, count in ((None, 2), ("cstorch-2.10", 1), (replace(CSTORCH, name="mine"), 1)):
        model = nn.Linear(10, 1, bias=False)
        clone(cls(0.8, compat=compat)).apply(model)
        assert int(model.weight_mask.sum()) == count


def counts_of_training(cls, compat, **options):
    model, algorithm = make_model(), cls(compat=compat, seed=0, **options)
    optimizer = driven(algorithm, model)
    counts = [int(model[0].weight_mask.sum())]
    train(model, optimizer, 4, after=lambda: counts.append(int(model[0].weight_mask.sum())))
    return counts


@pytest.mark.parametrize("cls", ALL)
def test_a_late_start_is_dense_and_lists_repeat(cls):
    late = {"sparsity": 0.5, "update": {"freq": 1, "start": 3}}
    assert counts_of_training(cls, None, **late)[:3] == [96] * 3
    assert counts_of_training(cls, "cstorch-2.10", **late)[:3] == [192] * 3
    values = {"sparsity": [0.5, 0.25], "update": 1, "init_method": "topk"}
    assert counts_of_training(sl.GMP, None, **values) == [96, 144, 144, 144, 144]
    assert counts_of_training(sl.SET, "cstorch-2.10", **values, drop_fraction=0.5) == [
        96, 144, 96, 144, 96,
    ]  # fmt: skip


@pytest.mark.parametrize("cls", [sl.SET, sl.RigL])
def test_a_sparsity_that_rises_faster_than_weights_drop_is_met_late(cls):
    steep = {"sparsity": lambda step: 0.0 if step < 1 else 0.75, "update": 1, "drop_fraction": 0.5}
    assert counts_of_training(cls, None, **steep) == [192, 48, 48, 48, 48]
    assert counts_of_training(cls, "cstorch-2.10", **steep) == [192, 96, 48, 48, 48]
    assert counts_of_training(cls, Rules(meets_target=False), **steep) == [192, 96, 48, 48, 48]


def test_global_pruning_may_empty_a_tensor_and_a_cosine_comes_back_up():
    scores = {"large": torch.arange(5.0, 9.0), "small": torch.arange(4.0)}
    for rules, kept in ((EXACT, [3, 1]), (CSTORCH, [4, 0])):
        masks = make_masks_global_topk(scores, 0.5, compat=rules)
        assert [int(mask.sum()) for mask in masks.values()] == kept
    cosine = {"type": "cosine", "init": 0.4, "half_period": 4}
    for compat, value in ((None, 0.0), ("cstorch-2.10", 0.4)):
        algorithm = sl.RigL(0.5, drop_fraction=cosine, compat=compat)
        assert algorithm.drop_schedule(8) == pytest.approx(value)
