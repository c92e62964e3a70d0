"""Rules of another library, by name or as an object, reach every decision that they are about."""

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
