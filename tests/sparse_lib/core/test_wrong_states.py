"""States of wrong types: loaded, or refused in one sentence with all as it was."""

import copy

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.sparse_lib.algorithm_cases import driven


def trained(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    algorithm = make()
    optimizer = driven(algorithm, model)

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        train()
    return algorithm, train


def same(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


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


def test_a_state_of_another_algorithm_is_loaded_with_a_warning():
    model = torch.nn.Linear(8, 8)
    rigl = sl.configure({"algorithm": "rigl", "sparsity": 0.5})
    rigl.apply(model)
    other = sl.configure({"algorithm": "set", "sparsity": 0.5})
    other.apply(torch.nn.Linear(8, 8))
    with pytest.warns(UserWarning, match="saved by RigL and is loaded into SET"):
        other.load_state_dict(rigl.state_dict())
