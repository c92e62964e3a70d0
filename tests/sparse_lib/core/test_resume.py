"""2N steps equal N steps, save, load into new objects, N steps, bit for bit."""

import io

import pytest
import torch

import sparse_lib as sl
from tests.sparse_lib.algorithm_cases import (
    ALGORITHMS,
    SCHEDULES,
    assert_equal,
    make,
    make_model,
    snapshot,
    train,
)

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=0.1),
    "adam": lambda params: torch.optim.Adam(params, 0.01, weight_decay=0.1),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01, amsgrad=True),
    "fused": lambda params: torch.optim.AdamW(params, 0.01, fused=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, 0.01, initial_accumulator_value=0.1),
    "rmsprop": lambda params: torch.optim.RMSprop(params, 0.01, momentum=0.9, centered=True),
    "adadelta": lambda params: torch.optim.Adadelta(params),
    "nadam": lambda params: torch.optim.NAdam(params, 0.01),
    "radam": lambda params: torch.optim.RAdam(params, 0.01),
    "adamax": lambda params: torch.optim.Adamax(params, 0.01),
    "rprop": lambda params: torch.optim.Rprop(params, 0.01),
    "asgd": lambda params: torch.optim.ASGD(params, 0.01),
    "adafactor": lambda params: torch.optim.Adafactor(params, 0.01),
}


def start(name, schedule, optimizer, seed=3):
    model = make_model(seed=0 if seed == 3 else 7)
    algorithm = make(name, SCHEDULES[schedule], seed=seed)
    algorithm.apply(model)
    optim = OPTIMIZERS[optimizer](model.parameters())
    algorithm.apply(optim)
    return model, algorithm, optim


def save(parts):
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    return file.getvalue()


def resume(name, schedule, optimizer, saved, num_steps):
    """Load into new objects that have other weights, masks and seeds, and go on."""
    states = torch.load(io.BytesIO(saved), weights_only=True)
    parts = start(name, schedule, optimizer, seed=99)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    train(parts[0], parts[2], num_steps, start=5)
    return parts


# Each algorithm with each schedule and with each optimizer; the other one rotates.
SCHEDULED = [(n, s, list(OPTIMIZERS)[i % 13]) for n in ALGORITHMS for i, s in enumerate(SCHEDULES)]
OPTIMIZED = [
    (n, list(SCHEDULES)[(i + k) % 11], o)
    for k, n in enumerate(ALGORITHMS)
    for i, o in enumerate(OPTIMIZERS)
]


@pytest.mark.parametrize(("name", "schedule", "optimizer"), sorted({*SCHEDULED, *OPTIMIZED}))
def test_resume_is_bit_exact(name, schedule, optimizer):
    model, algorithm, optim = start(name, schedule, optimizer)
    train(model, optim, 5)
    saved = save((model, algorithm, optim))
    train(model, optim, 5, start=5)
    other, resumed, _ = resume(name, schedule, optimizer, saved, 5)
    assert_equal(snapshot(model), snapshot(other))
    assert algorithm.metrics() == resumed.metrics()


def test_a_group_resumes_with_each_members_state():
    def build(seed):
        model = make_model(seed)
        members = {
            "0.*": sl.RigL([0.3, 0.5, 0.7], update=2, drop_fraction=[0.5, 0.3, 0.1]),
            "*": make("granet", 0.5, seed=None, pruning="global"),
        }
        algorithm = sl.Group(members, seed=seed)
        algorithm.apply(model)
        optim = OPTIMIZERS["adamw"](model.parameters())
        algorithm.apply(optim)
        return model, algorithm, optim

    parts = build(0)
    train(parts[0], parts[2], 5)
    saved = save(parts)
    train(parts[0], parts[2], 5, start=5)
    resumed = build(1)
    for part, state in zip(resumed, torch.load(io.BytesIO(saved), weights_only=True)):
        part.load_state_dict(state)
    train(resumed[0], resumed[2], 5, start=5)
    assert_equal(snapshot(parts[0]), snapshot(resumed[0]))


def test_the_peers_state_loads():
    algorithm = make("gmp", [0.3, 0.5, 0.7])
    model = make_model()
    algorithm.apply(model)
    algorithm.load_state_dict({"step": 4, "sparsity": {"0.weight": {"index": 2}}})
    assert algorithm.step == 4 and algorithm.sparsity["2.weight"](4) == 0.5
    group = sl.Group({"0.*": make("static"), "*": make("gmp", [0.3, 0.5, 0.7])})
    group.apply(make_model())
    group.load_state_dict([{}, {"step": 4, "sparsity": {"2.weight": {"index": 3}}}])
    assert group.step == 4 and group[1].sparsity["2.weight"](4) == 0.7
