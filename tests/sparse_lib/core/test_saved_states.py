"""States that go on bit for bit, or are loaded with a warning, refused or forgotten."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import sparse_lib as sl
from tests import cases
from tests.cases import ALGORITHMS, OPTIMIZERS, SCHEDULES, driven, fit, make, messages, same

RISING = {"type": "linear", "init": 0.5, "slope": 0.01}


def rigl(**options):
    return sl.RigL(0.5, **({"update": {"freq": 3}, "seed": 0} | options))


def train(model, optimizer, num_steps):
    fit(model, optimizer, [torch.ones(2, 8)] * num_steps, torch.sum)


def state_of(algorithm):
    algorithm.apply(nn.Linear(8, 8))
    return algorithm.state_dict()


@pytest.mark.parametrize(
    ("saved", "asked", "said"),
    [
        (sl.Static(0.8), sl.Static(0.5), "sparsity 0.8 and is loaded with 0.5; masks stay"),
        (sl.RigL(0.8), sl.RigL(RISING), r"0.8 .* with Linear\(init=0.5, slope=0.01\); masks go"),
        (rigl(update=100), rigl(update=5), r"freq=100, .* with FreqSchedule\(freq=5, .* latter"),
        (rigl(seed=1), rigl(seed=2), "with seed 1 and is loaded with 2; draws go on with 1"),
        (rigl(), sl.SET(0.5), "saved by RigL and is loaded into SET"),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_other_settings_on_resume_are_told(saved, asked, said, grouped):
    first, second = copy.deepcopy((saved, asked))
    if grouped:
        first, second = sl.Group({"*": first}), sl.Group({"*": second})
    state = state_of(first)
    second.apply(nn.Linear(8, 8))
    with pytest.warns(UserWarning, match=said) as told:
        second.load_state_dict(state)
    assert len(told) == 1


@pytest.mark.parametrize("update", [3, [2, 4], lambda step: step == 2])
@pytest.mark.parametrize("spec", [0.8, RISING, [0.5, 0.8], lambda step: 0.8])
def test_the_same_settings_on_resume_are_silent(spec, update):
    saved, other = (sl.RigL(spec, update, seed=4) for _ in range(2))
    state = state_of(saved)
    other.apply(nn.Linear(8, 8))
    assert messages(other.load_state_dict, state) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state.pop("step"), "no 'step'"),
        (lambda state: state.update(step=-4), "step=-4"),
        (lambda state: state.update(num_updates=2.5), "num_updates=2.5"),
        (lambda state: state.update(seed="x"), "seed='x'"),
        (lambda state: state.update(groups=[]), "the state is that of a Group; load it into one"),
        (lambda state: state.update(params=3), "params=3"),
        (lambda state: state["params"].pop("weight"), "lacks 'weight'"),
        (lambda state: state["params"].update(other={}), "has 'other'"),
        (lambda state: state["params"].update(weight=3), "must hold mappings"),
        (lambda state: state["params"]["weight"].update(target="x"), "no sparsity"),
        (lambda state: state["params"]["weight"].update(work={"x": 1}), "no numbers.*'work'"),
        (
            lambda state: state["params"]["weight"]["history"].update(flags=torch.ones(3)),
            "no bytes of its shape",
        ),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_state_that_does_not_fit_changes_nothing(change, sentence, grouped):
    model = nn.Linear(8, 8)
    members = {"bias": sl.SET(0.5, seed=0), "weight": rigl(update=1)}
    algorithm = sl.Group(members) if grouped else rigl(update=1)
    optimizer = driven(algorithm, model)
    train(model, optimizer, 2)
    state = copy.deepcopy(algorithm.state_dict())
    train(model, optimizer, 1)
    now = copy.deepcopy(algorithm.state_dict())
    change(state["groups"][1] if grouped else state)
    with pytest.raises(ValueError, match=sentence):
        algorithm.load_state_dict(state)
    assert same(algorithm.state_dict(), now)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_forgotten_optimizer_is_missed_at_the_first_update(grouped, fused):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    algorithm = sl.Group({"*": rigl()}) if grouped else rigl()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=fused)
    # A step is noticed in the forward pass after it: three steps are seen in the fourth round.
    assert messages(train, model, optimizer, 3) == []
    (message,) = messages(train, model, optimizer, 4)
    assert "RigL would have updated its masks after optimizer step 3" in message
    assert "apply(optimizer)" in message
    assert messages(train, model, optimizer, 5) == []


@pytest.mark.parametrize("fused", [False, True])
def test_another_optimizer_than_the_one_applied_to_is_missed(fused):
    model = nn.Linear(8, 8)
    first = driven(algorithm := rigl(), model)
    train(model, first, 4)
    second, mask = torch.optim.SGD(model.parameters(), 0.01, fused=fused), model.weight_mask.clone()
    (message,) = messages(train, model, second, 30)
    assert torch.equal(model.weight_mask, mask) and algorithm.step == 4
    assert "its optimizer has taken no step since step 4" in message
    algorithm.detach(first)
    algorithm.apply(second)
    assert messages(train, model, second, 30) == []
    assert algorithm.step == 34 and not torch.equal(model.weight_mask, mask)


@pytest.mark.parametrize("fused", [False, True])
def test_inner_steps_of_another_optimizer_are_no_missed_ones(fused):
    model = nn.Linear(8, 8)
    outer, inner = driven(rigl(), model), torch.optim.SGD(model.parameters(), 0.01, fused=fused)
    for _ in range(10):
        assert messages(train, model, inner, 5) == messages(train, model, outer, 1) == []
    outer = driven(rigl(), model := nn.Linear(8, 8), torch.optim.LBFGS, max_iter=30)

    def loss():
        outer.zero_grad()
        (value := model(torch.eye(8)).pow(4).sum()).backward()
        return value.detach()

    assert messages(lambda: [outer.step(loss) for _ in range(4)]) == []


def test_what_misses_nothing_is_silent():
    still, by_hand = sl.Static(0.5), rigl()
    by_hand.autoupdate = False
    for algorithm in (still, by_hand):
        model = algorithm.apply(nn.Linear(8, 8))
        assert messages(train, model, torch.optim.SGD(model.parameters(), 0.01), 5) == []
    model = nn.Linear(8, 8)
    assert messages(train, model, driven(rigl(), model), 5) == []
    model = nn.Linear(8, 8)  # new masks on a dense training are no resume
    train(model, optimizer := torch.optim.Adam(model.parameters(), 0.01), 3)
    (algorithm := rigl()).apply(model)
    algorithm.apply(optimizer)
    assert messages(train, model, optimizer, 3) == []


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("forget", [True, False])
def test_a_resume_without_the_algorithms_state_warns(kind, grouped, forget):
    def start():
        model, algorithm = nn.Linear(8, 8), sl.Group({"*": rigl()}) if grouped else rigl()
        return model, driven(algorithm, model, kind, 0.01), algorithm

    first, second = start(), start()
    train(*first[:2], 4)
    for part, other in list(zip(first, second))[: 2 if forget else 3]:
        other.load_state_dict(copy.deepcopy(part.state_dict()))
    said = messages(train, *second[:2], 4)
    assert len(said) == forget
    assert not forget or "the state of RigL was not" in said[0]


#: For 2N steps against N steps, save, load into new objects, N steps.
KINDS = {name: (name, options) for name, options in OPTIMIZERS.items() if name != "LBFGS"}
KINDS["fused"] = "AdamW", {"fused": True}


def started(algorithm, optimizer, seed):
    kind, options = KINDS[optimizer]
    model = cases.make_model(seed)
    return model, algorithm, driven(algorithm, model, getattr(torch.optim, kind), 0.01, **options)


def check(first, second):
    """The second, of other weights, masks and seeds, goes on from the first's state as it does."""
    cases.train(first[0], first[2], 5)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    for part, state in zip(second, torch.load(io.BytesIO(file.getvalue()), weights_only=True)):
        part.load_state_dict(state)
    for model, _, optimizer in (first, second):
        cases.train(model, optimizer, 5, start=5)
    cases.assert_equal(*(cases.snapshot(model) for model, *_ in (first, second)))
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
    check(*(started(algorithm, optimizer, seed) for seed, algorithm in enumerate(made)))


def test_torchs_distributed_checkpoints_take_no_step():
    def start(seed):
        torch.manual_seed(seed)
        model, algorithm = nn.Linear(8, 8), sl.SET(0.5, update=4, seed=0)
        return model, algorithm, driven(algorithm, model, torch.optim.AdamW)

    model, algorithm, optimizer = start(0)
    train(model, optimizer, 3)
    saved = copy.deepcopy((*get_state_dict(model, optimizer), algorithm.state_dict()))
    again, other, fresh = start(1)
    other.load_state_dict(saved[2])
    set_state_dict(again, fresh, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert algorithm.step == other.step == 3
    for _ in range(3):
        assert same(again.state_dict(), model.state_dict())
        train(model, optimizer, 1)
        train(again, fresh, 1)


def test_a_group_resumes_with_each_members_state():
    def build(seed):
        members = {
            "0.*": sl.RigL([0.3, 0.5, 0.7], update=2, drop_fraction=[0.5, 0.3, 0.1]),
            "*": make("granet", 0.5, seed=None, pruning="global"),
        }
        return started(sl.Group(members, seed=seed), "AdamW", seed)

    check(build(0), build(1))


def test_the_peers_state_loads():
    algorithm = make("gmp", [0.3, 0.5, 0.7])
    algorithm.apply(cases.make_model())
    algorithm.load_state_dict({"step": 4, "sparsity": {"0.weight": {"index": 2}}})
    assert algorithm.step == 4 and algorithm.sparsity["2.weight"](4) == 0.5
    group = sl.Group({"0.*": make("static"), "*": make("gmp", [0.3, 0.5, 0.7])})
    group.apply(cases.make_model())
    group.load_state_dict([{}, {"step": 4, "sparsity": {"2.weight": {"index": 3}}}])
    assert group.step == 4 and group[1].sparsity["2.weight"](4) == 0.7
