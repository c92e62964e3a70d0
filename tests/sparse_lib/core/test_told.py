"""What is accepted, but most likely not meant, is told in one sentence."""

import warnings

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.srste import SRSTE
from sparse_lib.algorithms.static import Static
from sparse_lib.algorithms.topk import TopK
from sparse_lib.masks.counts import num_true

RISING = {"type": "linear", "init": 0.5, "slope": 0.01}


def state_of(algorithm):
    algorithm.apply(nn.Linear(8, 8))
    return algorithm.state_dict()


@pytest.mark.parametrize(
    ("saved", "asked", "said"),
    [
        (Static, 0.5, "saved with sparsity 0.8 and is loaded with 0.5; masks stay"),
        (RigL, 0.5, "saved with sparsity 0.8 and is loaded with 0.5; masks go there at their next"),
        (RigL, RISING, r"0.8 and is loaded with Linear\(init=0.5, slope=0.01\)"),
    ],
)
def test_another_sparsity_on_resume(saved, asked, said):
    state, other = state_of(saved(0.8)), saved(asked)
    other.apply(nn.Linear(8, 8))
    with pytest.warns(UserWarning, match=said):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("option", "saved", "asked", "said"),
    [
        (
            "update",
            100,
            {"freq": 5},
            r"freq=100, .* loaded with FreqSchedule\(freq=5, .* by the latter",
        ),
        ("update", [3, 9], [3], r"saved with update ListSchedule\(steps=\[3, 9\]\)"),
        ("seed", 1, 2, "saved with seed 1 and is loaded with 2; draws go on with 1"),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_another_update_or_seed_on_resume(option, saved, asked, said, grouped):
    first, second = (
        sl.Group({"*": RigL(0.8, **{option: value})}) if grouped and option == "update"
        else sl.Group({"*": RigL(0.8)}, seed=value) if grouped
        else RigL(0.8, **{option: value})
        for value in (saved, asked)
    )  # fmt: skip
    state = state_of(first)
    second.apply(nn.Linear(8, 8))
    with pytest.warns(UserWarning, match=said) as told:
        second.load_state_dict(state)
    assert len(told) == 1 and second.seed == first.seed


def test_the_state_of_a_group_is_none_of_an_algorithm():
    state, algorithm = state_of(sl.Group({"*": RigL(0.8)})), RigL(0.8)
    algorithm.apply(nn.Linear(8, 8))
    with pytest.raises(ValueError, match="the state is that of a Group; load it into one"):
        algorithm.load_state_dict(state)
    algorithm.load_state_dict(state["groups"][0])


@pytest.mark.parametrize("update", [3, [2, 4], lambda step: step == 2])
@pytest.mark.parametrize("spec", [0.8, RISING, [0.5, 0.8], lambda step: 0.8])
def test_the_same_settings_on_resume_are_silent(spec, update):
    options = {"update": update, "seed": 4}
    state, other = state_of(RigL(spec, **options)), RigL(spec, **options)
    other.apply(nn.Linear(8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)


def test_a_minimum_above_what_an_output_has():
    model, algorithm = nn.Linear(6, 4), TopK(0.5, min_per_output=9)
    with pytest.warns(UserWarning, match="min_per_output is 9, but 'weight' has 6 weights in each"):
        algorithm.apply(model)
    assert num_true(model.weight_mask) == 12


def test_a_sparsity_below_that_of_a_2_4_mask():
    said = "sparsity is 0.3, but 2:4 masks have at least 0.5, which they will get"
    with pytest.warns(UserWarning, match=said):
        algorithm = SRSTE(0.3, score_shaper="2:4")
    model = nn.Linear(8, 8, bias=False)
    algorithm.apply(model)
    assert torch.equal(model.weight_mask.view(-1, 4).sum(1), torch.full((16,), 2))
