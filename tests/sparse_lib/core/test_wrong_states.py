"""States of wrong types: loaded, or refused in one sentence with all as it was."""

import copy
import math

import pytest
import torch
from torch import nn

import sparse_lib as sl

WRONG = (None, -1, 2.5, "x", [], {}, [1], {"a": 1}, torch.ones(3), b"x", (1,), object())


def trained(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    algorithm = make()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm.apply(optimizer)

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        train()
    return algorithm, train


def places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def same(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize(
    "make",
    [
        lambda: sl.RigL(0.5, update=1, seed=0),
        lambda: sl.Group({"0.*": sl.RigL(0.5, update=1), "*": sl.SET(0.5, update=1)}, seed=0),
    ],
    ids=["rigl", "group"],
)
def test_a_state_with_a_wrong_value_is_loaded_or_refused(make):
    algorithm, train = trained(make)
    good = copy.deepcopy(algorithm.state_dict())
    refused = 0
    for path in [path for path in places(good) if path]:
        for value in WRONG:
            state = copy.deepcopy(good)
            inner = state
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            try:
                algorithm.load_state_dict(state)
            except ValueError:
                refused += 1
                assert len(path) > 1 or same(algorithm.state_dict(), good)
            else:
                train()
            algorithm.load_state_dict(copy.deepcopy(good))
    assert refused > 100


def test_a_group_is_as_it_was_when_one_member_refuses():
    algorithm, train = trained(lambda: sl.Group({"0.*": sl.RigL(0.5), "*": sl.SET(0.5)}, seed=0))
    before, good = algorithm.state_dict(), copy.deepcopy(algorithm.state_dict())
    train()
    now = algorithm.state_dict()
    before["groups"][1]["params"] = None
    with pytest.raises(ValueError, match="params=None"):
        algorithm.load_state_dict(before)
    assert same(algorithm.state_dict(), now) and not same(now, good)
    algorithm.load_state_dict(good)
    assert same(algorithm.state_dict(), good)


@pytest.mark.parametrize(
    ("key", "value"),
    [("step", True), ("step", 10**400), ("num_updates", False), ("target", math.inf),
     ("target", -0.5), ("target", math.nan)],
)  # fmt: skip
def test_numbers_that_no_training_reaches_are_refused(key, value):
    algorithm, _ = trained(lambda: sl.RigL(0.5, update=1, seed=0))
    state = copy.deepcopy(algorithm.state_dict())
    (next(iter(state["params"].values())) if key == "target" else state)[key] = value
    with pytest.raises(ValueError, match=f"{key}="):
        algorithm.load_state_dict(state)
    assert algorithm.step == 3


@pytest.mark.parametrize("state", [None, 3, "x", object()])
def test_a_state_that_is_no_mapping_is_refused(state):
    algorithm, _ = trained(lambda: sl.RigL(0.5))
    with pytest.raises(ValueError, match="not the state of a RigL"):
        algorithm.load_state_dict(state)


def test_a_state_of_another_algorithm_is_loaded_with_a_warning():
    model = torch.nn.Linear(8, 8)
    rigl = sl.configure({"algorithm": "rigl", "sparsity": 0.5})
    rigl.apply(model)
    other = sl.configure({"algorithm": "set", "sparsity": 0.5})
    other.apply(torch.nn.Linear(8, 8))
    with pytest.warns(UserWarning, match="saved by RigL and is loaded into SET"):
        other.load_state_dict(rigl.state_dict())
