"""2N steps equal N steps, save, load into new objects, N steps, bit for bit."""

import io

import pytest
import torch

from tests.sparse_lib.algorithm_cases import (
    ALGORITHMS,
    SCHEDULES,
    assert_equal,
    make,
    make_model,
    snapshot,
    train,
)
from tests.sparse_lib.test_conformance import OPTIMIZERS


def start(name, schedule, optimizer, seed=3):
    model = make_model(seed=0 if seed == 3 else 7)
    algorithm = make(name, SCHEDULES[schedule], seed=seed)
    algorithm.apply(model)
    optim = OPTIMIZERS[optimizer](model.parameters())
    algorithm.apply(optim)
    return model, algorithm, optim


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_resume_is_bit_exact(name, schedule, optimizer):
    model, algorithm, optim = start(name, schedule, optimizer)
    train(model, optim, 5)
    file = io.BytesIO()
    parts = (model, algorithm, optim)
    torch.save([part.state_dict() for part in parts], file)
    train(model, optim, 5, start=5)

    file.seek(0)
    states = torch.load(file, weights_only=True)
    resumed = start(name, schedule, optimizer, seed=99)  # other weights, masks and seed
    for part, state in zip(resumed, states, strict=True):
        part.load_state_dict(state)
    train(resumed[0], resumed[2], 5, start=5)
    assert_equal(snapshot(model), snapshot(resumed[0]))
    assert algorithm.metrics() == resumed[1].metrics()


def test_a_state_is_not_changed_by_loading():
    _, algorithm, _ = start("rigl", "list", "sgd")
    algorithm.sparsity.schedules[0].index = 2
    state = algorithm.state_dict()
    before = repr(state)
    algorithm.load_state_dict(state)
    assert repr(state) == before
    assert algorithm.sparsity.schedules[0].index == 2


def test_a_stateful_drop_fraction_is_saved():
    algorithm = make("set", drop_fraction=[0.5, 0.4, 0.3, 0.2])
    model = make_model()
    algorithm.apply(model)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optim)
    train(model, optim, 4)
    assert algorithm.state_dict()["drop_fraction"] == {"index": 3}  # step 0, 2 and 4


def test_a_strange_state_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="no 'step'"):
        make("rigl").load_state_dict({"masks": []})
