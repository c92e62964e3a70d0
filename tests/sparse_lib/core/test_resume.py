"""2N steps equal N steps, save, load into new objects, N steps, bit for bit."""

import io

import pytest
import torch

import sparse_lib as sl
from tests.cases import (
    ALGORITHMS,
    OPTIMIZERS,
    SCHEDULES,
    assert_equal,
    driven,
    make,
    make_model,
    snapshot,
    train,
)

KINDS = {name: (name, options) for name, options in OPTIMIZERS.items() if name != "LBFGS"}
KINDS["fused"] = "AdamW", {"fused": True}


def start(algorithm, optimizer, seed):
    kind, options = KINDS[optimizer]
    model = make_model(seed)
    return model, algorithm, driven(algorithm, model, getattr(torch.optim, kind), 0.01, **options)


def check(first, second):
    """The second, of other weights, masks and seeds, goes on from the first's state as it does."""
    train(first[0], first[2], 5)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    for part, state in zip(second, torch.load(io.BytesIO(file.getvalue()), weights_only=True)):
        part.load_state_dict(state)
    for model, _, optimizer in (first, second):
        train(model, optimizer, 5, start=5)
    assert_equal(snapshot(first[0]), snapshot(second[0]))
    assert first[1].metrics() == second[1].metrics()


# Each algorithm with each schedule and with each optimizer; the other one rotates.
SCHEDULED = [(n, s, list(KINDS)[i]) for n in ALGORITHMS for i, s in enumerate(SCHEDULES)]
OPTIMIZED = [
    (n, list(SCHEDULES)[(i + k) % 11], o)
    for k, n in enumerate(ALGORITHMS)
    for i, o in enumerate(KINDS)
]


@pytest.mark.parametrize(("name", "schedule", "optimizer"), sorted({*SCHEDULED, *OPTIMIZED}))
def test_resume_is_bit_exact(name, schedule, optimizer):
    made = (make(name, SCHEDULES[schedule], seed=seed) for seed in (3, 99))
    check(*(start(algorithm, optimizer, seed) for seed, algorithm in enumerate(made)))


def test_a_group_resumes_with_each_members_state():
    def build(seed):
        members = {
            "0.*": sl.RigL([0.3, 0.5, 0.7], update=2, drop_fraction=[0.5, 0.3, 0.1]),
            "*": make("granet", 0.5, seed=None, pruning="global"),
        }
        return start(sl.Group(members, seed=seed), "AdamW", seed)

    check(build(0), build(1))


def test_the_peers_state_loads():
    algorithm = make("gmp", [0.3, 0.5, 0.7])
    algorithm.apply(make_model())
    algorithm.load_state_dict({"step": 4, "sparsity": {"0.weight": {"index": 2}}})
    assert algorithm.step == 4 and algorithm.sparsity["2.weight"](4) == 0.5
    group = sl.Group({"0.*": make("static"), "*": make("gmp", [0.3, 0.5, 0.7])})
    group.apply(make_model())
    group.load_state_dict([{}, {"step": 4, "sparsity": {"2.weight": {"index": 3}}}])
    assert group.step == 4 and group[1].sparsity["2.weight"](4) == 0.7
