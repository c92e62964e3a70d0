"""Group: filters, order, and settings of members."""

import pytest
import torch
from torch import nn

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static
from sparse_lib.group import Group
from tests.sparse_lib.algorithm_cases import (
    assert_enforced,
    assert_equal,
    make_model,
    snapshot,
    train,
)


def make_group():
    members = {
        "0.weight": Static(0.3, seed=1),
        ("0.*", "nothing*"): SET(0.9, update={"freq": 1}, seed=1),
        lambda name, param: param.dim() > 1: RigL(0.8, update={"freq": 2}, seed=1),
    }
    return Group(members)


def test_the_first_match_wins_and_apply_is_order_free():
    first, second, one, two = make_model(), make_model(), make_group(), make_group()
    first.apply(one)
    two.apply(second)
    assert_equal(snapshot(first), snapshot(second))
    assert [list(a.sparse_params) for a in one] == [["0.weight"], ["0.bias"], ["2.weight"]]


def test_training_and_state():
    model, group = make_model(), make_group()
    group.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    group.apply(optimizer)
    train(model, optimizer, 1)
    assert group.needs_dense_gradient
    train(model, optimizer, 4, after=lambda: assert_enforced(group, optimizer))
    assert [a.step for a in group] == [5, 5, 5]
    other = make_group()
    other.apply(make_model())
    other.load_state_dict(group.state_dict())
    assert other.step == 5 and other[2].num_updates == 2


@pytest.mark.parametrize("nested", [False, True])
def test_autoupdate_of_group_and_member(nested):  # defect 35
    model, group = make_model(), Group({"*": SET(0.5, update=1)})
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    group.apply(optimizer)
    (group[0] if nested else group).autoupdate = False
    before = model[0].weight_mask.clone()
    train(model, optimizer, 2)
    assert torch.equal(before, model[0].weight_mask)


def test_one_optimizer_step_is_skipped_for_all_members():
    group = Group({"0.*": RigL(0.5, 1, skip_update_on_mask_steps=True), "*": SET(0.5, 1)})
    model = make_model()
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    group.apply(optimizer)
    before = snapshot(model)
    train(model, optimizer, 1)
    both = before["2.weight_mask"] & model[2].weight_mask
    assert torch.equal(before["2.weight"][both], model[2].weight.detach()[both])


def test_misuse():
    with pytest.raises(ValueError, match="at least one"):
        Group().apply(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="cannot hold a Group"):
        Group({"*": Group()})
    with pytest.raises(TypeError, match="algorithms"):
        Group({"*": 0.5})
    with pytest.warns(UserWarning, match="matches 'nothing'"):
        Group({"nothing": Static(0.5)}).apply(nn.Linear(2, 2))
