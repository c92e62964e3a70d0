"""Group: filters, order, and settings of members."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import sparse_lib as sl
from tests.cases import assert_equal, driven, make_model, snapshot, train
from tests.sparse_lib.tiny_models import gpt2


def make_group():
    members = {
        "0.weight": sl.Static(0.3, seed=1),
        ("0.*", "nothing*"): sl.SET(0.9, update={"freq": 1}, seed=1),
        lambda name, param: param.dim() > 1: sl.RigL(0.8, update={"freq": 2}, seed=1),
    }
    return sl.Group(members)


def test_the_first_match_wins_and_apply_is_order_free_on_a_part_too():
    first, second, one, two = make_model(), make_model(), make_group(), make_group()
    first.apply(one)
    two.apply(second)
    assert_equal(snapshot(first), snapshot(second))
    assert [list(a.sparse_params) for a in one] == [["0.weight"], ["0.bias"], ["2.weight"]]
    two = copy.deepcopy(one := gpt2())
    one.transformer.h.apply(sl.Static(0.5, seed=1))
    sl.Static(0.5, seed=1).apply(two.transformer.h)
    assert_equal(snapshot(one), snapshot(two))
    assert not hasattr(one.transformer.wte, "weight_mask")


def test_groups_are_extended_and_hooks_reach_every_member():
    group = sl.Group({"0.weight": sl.Static(0.25)})
    group.add(["2.*", "none"], sl.SET(0.5))
    group.extend(sl.Group([(lambda name, param: True, sl.Static(0.9, "from_zeros"))]))
    assert len(group) == 3 and isinstance(group[1], sl.SET)
    targets, actual = {}, {}
    handles = group.register_target_sparsity_hook(lambda _, *found: targets.update([found]))
    group.register_computed_sparsity_hook(lambda _, *found: actual.update([found]))
    model = make_model()
    train(model, driven(group, model), 1)
    assert [type(handle) for handle in handles] == [RemovableHandle] * 3
    assert targets == {"0.weight*": 0.25, "2.weight*": 0.5, "0.bias*": 0.9}
    # What is there, not what was asked for.
    assert actual == {"0.weight": 0.25, "2.weight": 0.5, "0.bias": 0.0}


def test_one_optimizer_step_is_skipped_for_all_members():
    group = sl.Group({"0.*": sl.RigL(0.5, 1, skip_update_on_mask_steps=True), "*": sl.SET(0.5, 1)})
    model = make_model()
    optimizer = driven(group, model)
    before = snapshot(model)
    train(model, optimizer, 1)
    both = before["2.weight_mask"] & model[2].weight_mask
    assert torch.equal(before["2.weight"][both], model[2].weight.detach()[both])


def test_misuse():
    with pytest.raises(ValueError, match="at least one"):
        sl.Group().apply(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="cannot hold a Group"):
        sl.Group({"*": sl.Group()})
    with pytest.raises(TypeError, match="algorithms"):
        sl.Group({"*": 0.5})
    for groups in ([1], [("*",)], [sl.Static(0.5)], ["ab"]):
        with pytest.raises(TypeError, match="takes a dict or .filter, algorithm. pairs, not"):
            sl.Group(groups)
    for globs, lack in (("nothing", "matches 'n"), (["b*", "*t"], r"is left by earlier filters")):
        with pytest.raises(ValueError, match=f"no parameter {lack}.*, given to SET"):
            sl.Group([("[wb]*", sl.Static(0.5)), (globs, sl.SET(0.5))]).apply(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("globs", "idle"),
    [
        (["0.weight", "1.wieght", "3.*", "3.*"], ["1.wieght", "3.*"]),
        (["0.weight", "2.weight"], []),
        (["*.weight", "2.weight"], []),
        (["0.*", "2.weight"], []),  # the member before has it
    ],
)
def test_each_glob_of_a_list_that_matches_nothing_is_warned_of(globs, idle):
    group = sl.Group([("2.weight", sl.Static(0.5)), (globs, sl.SET(0.5))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group.apply(make_model())
    assert [str(warning.message) for warning in caught] == [
        f"no parameter matches {glob!r}, one of the globs given to SET" for glob in idle
    ]


MLP = {"algorithm": "set", "sparsity": 0.9, "param_filter": ["*mlp*weight", "*mlp*bias"]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: sl.Group({"*": sl.Static(0.5), lambda name, param: False: sl.SET(0.5)}),
        lambda: sl.configure([{"sparsity": 0.3, "param_filter": "*attn*"}, MLP]),
        lambda: sl.configure(0.75),
    ],
)
def test_applying_from_the_model_is_bit_identical(make):
    one = gpt2(n_layer=2)
    two, first, second, said = copy.deepcopy(one), make(), make(), []
    for apply in (lambda: one.apply(first), lambda: second.apply(two)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            apply()
        said.append([str(warning.message) for warning in caught])
    assert_equal(snapshot(one), snapshot(two))
    assert said[0] == said[1] and list(first.sparse_params) == list(second.sparse_params)
