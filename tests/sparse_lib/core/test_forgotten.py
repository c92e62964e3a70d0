"""What a script forgets is said once, at the first update that cannot happen."""

import copy
import warnings

import pytest
import torch
from torch import nn

import sparse_lib as sl


def train(model, optimizer, num_steps):
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).pow(2).sum().backward()
        optimizer.step()


def messages(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught]


def rigl(**options):
    return sl.RigL(0.5, update={"freq": 3}, seed=0, **options)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_forgotten_optimizer_is_missed_at_the_first_update(grouped):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    algorithm = sl.Group({"*": rigl()}) if grouped else rigl()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    # A step is noticed in the forward pass after it: three steps are seen in the fourth round.
    assert messages(lambda: train(model, optimizer, 3)) == []
    (message,) = messages(lambda: train(model, optimizer, 4))
    assert "RigL would have updated its masks after optimizer step 3" in message
    assert "apply(optimizer)" in message
    assert messages(lambda: train(model, optimizer, 5)) == []


def test_what_misses_nothing_is_silent():
    for algorithm in (sl.Static(0.5), rigl(), rigl()):
        model = nn.Linear(8, 8)
        algorithm.apply(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        if algorithm.updates_masks:
            algorithm.apply(optimizer)
        assert messages(lambda: train(model, optimizer, 5)) == []  # noqa: B023
    by_hand = rigl()
    by_hand.autoupdate = False
    model = by_hand.apply(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    assert messages(lambda: train(model, optimizer, 5)) == []
    # Loading weights again and again is no training.
    alone = rigl().apply(nn.Linear(8, 8))
    state = copy.deepcopy(alone.state_dict())

    def reload():
        for _ in range(5):
            alone.load_state_dict(state)
            alone(torch.ones(1, 8))

    assert messages(reload) == []


OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, 0.01),
    "sgd": lambda params: torch.optim.SGD(params, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("forget", [True, False])
def test_a_resume_without_the_algorithms_state_warns(name, grouped, forget):
    def start():
        model = nn.Linear(8, 8)
        algorithm = sl.Group({"*": rigl()}) if grouped else rigl()
        algorithm.apply(model)
        optimizer = OPTIMIZERS[name](model.parameters())
        algorithm.apply(optimizer)
        return model, optimizer, algorithm

    first = start()
    train(*first[:2], 4)
    states = [copy.deepcopy(part.state_dict()) for part in first]
    second = start()
    for part, state in list(zip(second, states))[: 2 if forget else 3]:
        part.load_state_dict(state)
    said = messages(lambda: train(*second[:2], 4))
    assert len(said) == forget
    assert not forget or "the state of RigL was not" in said[0]


def test_new_masks_on_a_dense_training_are_no_resume():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(model, optimizer, 3)
    algorithm = rigl()
    algorithm.apply(model)
    algorithm.apply(optimizer)
    assert messages(lambda: train(model, optimizer, 3)) == []
