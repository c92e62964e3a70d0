"""Schedules against hand values, edges of their closed forms, and bad configs."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_lib.compat.rules import CSTORCH
from sparse_lib.schedules import (
    CallableSchedule,
    Constant,
    Cosine,
    Cubic,
    Cycling,
    Exp,
    FreqSchedule,
    HyperParameterSchedule,
    Lambda,
    Linear,
    ListSchedule,
    Periodic,
    Polynomial,
    Power,
    UpdateSchedule,
    make_hyperparameter_schedule,
    make_update_schedule,
)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(0.3), {0: 0.3, 10**9: 0.3}),
        (Linear(0.1, 0.02), {0: 0.1, 10: 0.3}),
        (Exp(0.0, -0.1, 0.8), {0: 0.0, 10: 0.8 * (1 - math.exp(-1)), 10**6: 0.8}),
        (Power(0.5, 0.5), {0: 0.5, 1: 0.25, 3: 0.0625}),
        (Polynomial(0.0, 0.8, 10, 20), {0: 0, 10: 0, 15: 0.7, 20: 0.8, 99: 0.8}),
        (Polynomial(0.0, 0.8, 10, 20, power=1), {15: 0.4}),
        (Polynomial(0.2, 0.8, 5, 5), {4: 0.2, 5: 0.8}),
        (Polynomial(0.8, 0.0, 0, 10, power=2), {0: 0.8, 5: 0.2, 10: 0.0}),
        (Cubic(0.5, 0.8, 0, 100), {0: 0.5, 50: 0.8 - 0.3 / 8, 100: 0.8, 101: 0.8}),
        # Staircase: 10 // 10 = 1 is the first of (50 - 10) / 10 = 4 intervals.
        (Cubic(0.0, 0.8, 10, 50, 10), {0: 0, 10: 0, 19: 0, 30: 0.7, 49: 0.8 * 63 / 64, 50: 0.8}),
        (Cubic(0.0, 0.8, 10, 50, 10), {20: 0.8 * 37 / 64, 29: 0.8 * 37 / 64, 1000: 0.8}),
        (Cubic(0.2, 0.8, 12, 18, 10), {0: 0.2, 9: 0.2, 10: 0.8, 30: 0.8}),  # one interval: a jump
        (Cubic(0.8, 0.5, 0, 10, 1), {0: 0.8, 5: 0.5 + 0.3 / 8, 10: 0.5, 99: 0.5}),
        (Cosine(0.3, 100), {0: 0.3, 50: 0.15, 100: 0.0, 150: 0.0, 200: 0.0}),
        (Cosine(0.5, 10, 0.1), {0: 0.5, 5: 0.3, 10: 0.1, 15: 0.1}),
        (Cosine(0.5, 10, 0.1, compat=CSTORCH), {0: 0.5, 5: 0.3, 10: 0.1, 15: 0.3, 20: 0.5}),
        (Periodic([0.1, 0.2], 5), {0: 0.1, 4: 0.1, 5: 0.2, 9: 0.2, 10: 0.1}),
        (Lambda(lambda step: step / 10), {3: 0.3}),
        (Lambda(lambda step, is_update_step: 0.5 if is_update_step else 0.1), {3: 0.1}),
    ],
)
def test_closed_forms(schedule, values):
    assert {step: schedule(step) for step in values} == pytest.approx(values, abs=1e-12)
    assert all(type(schedule(step)) is float for step in values)
    again = pickle.loads(pickle.dumps(schedule)) if type(schedule) is not Lambda else schedule
    assert {step: again(step) for step in values} == pytest.approx(values, abs=1e-12)
    assert schedule.state_dict() == {}


@settings(max_examples=60)
@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 50), st.integers(0, 50),
    st.none() | st.integers(1, 20), st.integers(0, 200),
)  # fmt: skip
def test_cubic_is_monotone_and_within_its_ends(init, end, start, length, interval, step):
    cubic = Cubic(init, end, start, start + length, interval)
    low, high = sorted((init, end))
    assert low <= cubic(step) <= high
    assert (cubic(step + 1) - cubic(step)) * (end - init) >= 0
    assert cubic(start + length) == end


def test_a_schedule_that_leaves_its_bounds_is_refused():
    with pytest.raises(ValueError, match="highest value of sparsity .*80"):
        make_hyperparameter_schedule(Cubic(0, 80, 0, 10))


def test_min_max_end():
    assert Cubic(0.5, 0.8, 0, 10, 2).get_min_max_end(0, 10) == (0.5, 0.8, 0.8)
    assert Linear(0.5, -0.01).get_min_max_end(0, 10) == pytest.approx((0.4, 0.5, 0.4))
    assert Cosine(0.4, 10).get_min_max_end(0, 100) == (0.0, 0.4, 0.0)
    assert Cosine(0.4, 10, compat=CSTORCH).get_min_max_end(0, 20) == pytest.approx((0, 0.4, 0.4))
    assert Cycling([0.3, 0.1, 0.2]).get_min_max_end(0, 5) == (0.1, 0.3, 0.2)
    assert Periodic([0.3, 0.2, 0.1], 10).get_min_max_end(0, 1000) == (0.1, 0.3, 0.2)
    assert Periodic([0.3, 0.1, 0.2], 10).get_min_max_end(0, 12) == (0.1, 0.3, 0.1)
    bump = Lambda(lambda step: 1.0 if step == 500 else 0.0)
    assert bump.get_min_max_end(0, 1000) == (0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="end must be at least begin=5"):
        Constant(0.5).get_min_max_end(5, 4)


def run(schedule, updates):
    """The value seen at each step, updating at the given ones."""
    seen = []
    for step, is_update in enumerate(updates):
        seen.append(schedule(step, is_update))
        schedule.update(is_update)
    return seen


def test_cycling_moves_at_updates_only_and_resumes_from_a_state_of_its_kind():
    updates = [True, False, True, False, True, True]
    assert run(Cycling([0.1, 0.2, 0.3]), updates) == [0.1, 0.1, 0.2, 0.2, 0.3, 0.1]
    assert run(Cycling([0.1, 0.2, 0.3], repeat=False), updates) == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    # Step 0 may not be an update step: the first value is in effect, and the first one used.
    assert run(Cycling([0.1, 0.2]), [False, True, True]) == [0.1, 0.1, 0.2]
    # The reference wraps a list too, so a pruning list would end by re-opening everything.
    for rules, last in ((None, 0.9), (CSTORCH, 0.1)):
        schedule = make_hyperparameter_schedule([0.1, 0.9], compat=rules)
        assert run(schedule, [True] * 3) == [0.1, 0.9, last]
    schedule, fresh = Cycling([0.1, 0.2, 0.3]), Cycling([0.1, 0.2, 0.3])
    run(schedule, [True, True])
    fresh.load_state_dict(state := schedule.state_dict())
    assert run(fresh, [True, True]) == run(schedule, [True, True])
    assert state == {"index": 2}
    with pytest.raises(ValueError, match=r"state of Cycling must have the keys \['index'\]"):
        Cycling([0.1]).load_state_dict({})
    with pytest.raises(ValueError, match="state of Constant"):
        Constant(0.1).load_state_dict({"index": 1})


def test_a_subclass_is_found_by_name_and_type():
    class MyStairs(HyperParameterSchedule):
        TYPE = "stairs"
        STATE = ("seen",)

        def __init__(self, height):
            self.height, self.seen = height, 0

        def compute(self, step):
            return torch.tensor(self.height * self.seen)

        def update(self, is_update_step):
            self.seen += is_update_step

    for name in ("mystairs", "MyStairs", "stairs"):
        schedule = make_hyperparameter_schedule({"type": name, "height": 0.25})
        assert isinstance(schedule, MyStairs)
    assert run(schedule, [True, True, True]) == [0.0, 0.25, 0.5]
    assert schedule.state_dict() == {"seen": 3}


CUBIC = {"type": "cubic", "init_sparsity": 0, "end_sparsity": 0.8, "sparsity_start_step": 0}
CUBIC |= {"sparsity_end_step": 10, "prune_every_k_steps": 2}


@pytest.mark.parametrize(
    ("spec", "cls"),
    [
        (0.5, Constant),
        (0, Constant),
        (torch.tensor(0.5), Constant),
        ((0.1, 0.2), Cycling),
        ({"type": "cosine", "init": 0.3, "half_period": 10}, Cosine),
        ({"type": "Exp", "init": 0.0, "gamma": -0.1}, Exp),
        ({"type": "cycling", "values": [0.1]}, Cycling),
        ({"type": "lambda", "fn": math.sqrt}, Lambda),
        (CUBIC, Cubic),
        (lambda step: 0.5, Lambda),
    ],
)
def test_specs(spec, cls):
    before = copy.copy(spec)
    schedule = make_hyperparameter_schedule(spec)
    assert type(schedule) is cls and (torch.is_tensor(spec) or spec == before)
    again = make_hyperparameter_schedule(schedule)
    assert repr(again) == repr(schedule) and (again is schedule) == (not cls.STATE)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (80, ValueError, "drop_fraction must be between 0 and 1, not 80"),
        ("3e-1", TypeError, "drop_fraction must be a number, a list, .* not '3e-1'; write 0.3"),
        (None, TypeError, "drop_fraction must be a number"),
        ([], ValueError, "drop_fraction: values must hold at least one"),
        ([0.1, 2], ValueError, r"drop_fraction\[1\] must be between 0 and 1, not 2"),
        ({"init": 0.3}, ValueError, "drop_fraction as a dict needs a 'type', one of: .*cosine"),
        ({"type": "cosin"}, ValueError, "unknown type 'cosin'; did you mean 'cosine'"),
        ({"type": "cosine"}, ValueError, "drop_fraction lacks 'init'"),
        ({"type": "constant", "value": 1, "x": 2}, ValueError, "has the unknown key 'x'"),
        ({"type": "constant", "value": "a"}, TypeError, "drop_fraction: value must be a number"),
        ({"type": "cosine", "init": 0.3, "half_period": 0}, ValueError, "half_period .* 0, not 0"),
        ({"type": "cycling", "values": 0.3}, TypeError, "values must be a list of numbers"),
        ({"type": "cycling", "values": [1], "repeat": "false"}, TypeError, "repeat must be true"),
    ],
)
def test_bad_specs_are_explained(spec, error, message):
    with pytest.raises(error, match=message):
        make_hyperparameter_schedule(spec, key="drop_fraction")


class Odd(UpdateSchedule):
    def is_update_step(self, step):
        return step % 2 == 1


@pytest.mark.parametrize(
    ("spec", "cls", "steps"),
    [
        (None, FreqSchedule, list(range(12))),
        (5, FreqSchedule, [0, 5, 10]),
        ({"freq": 5}, FreqSchedule, [0, 5, 10]),
        ({"freq": 3, "start": 2, "stop": 8}, FreqSchedule, [2, 5]),  # stop is exclusive
        ({"start": 10}, FreqSchedule, [10, 11]),
        ({"type": "periodic", "freq": 6}, FreqSchedule, [0, 6]),
        ({"steps": [7, 2, 2]}, ListSchedule, [2, 7]),
        ([7, 2], ListSchedule, [2, 7]),
        (lambda step: step in (3, 4), CallableSchedule, [3, 4]),
        (Odd(), Odd, [1, 3, 5, 7, 9, 11]),
    ],
)
def test_update_schedules(spec, cls, steps):
    schedule = make_update_schedule(spec)
    assert type(schedule) is cls and make_update_schedule(schedule) is schedule
    assert [step for step in range(12) if schedule.is_update_step(step)] == steps
    assert [step for step in range(12) if schedule(step)] == steps


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (0, ValueError, "update: freq must be at least 1, not 0"),
        (2.5, TypeError, "update: freq must be an integer, not 2.5"),
        ("5", TypeError, "update must be None, an integer"),
        ({"freq": 5, "end": 3}, ValueError, "update has the unknown key 'end'"),
        ({"steps": [1], "freq": 2}, ValueError, "update has the unknown key 'freq'"),
        ({"steps": 3}, TypeError, "update: steps must be a list"),
        ({"type": "freqs"}, ValueError, "update has the unknown type 'freqs'; did you mean 'freq"),
    ],
)
def test_bad_update_specs_are_explained(spec, error, message):
    with pytest.raises(error, match=message):
        make_update_schedule(spec)
