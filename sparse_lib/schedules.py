"""Schedules: from a step to a value, or to whether masks are updated.

Step ``t`` is the number of finished optimizer steps; step 0 is initialisation.
"""

from __future__ import annotations

import copy
import inspect
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from sparse_lib.checks import (
    SettingError,
    about_number,
    about_shares,
    build,
    check_bool,
    check_finite,
    check_fraction,
    check_integer,
    closest,
    positional,
)
from sparse_lib.rules import EXACT, Rules, rules_of

_MOST_SAMPLES = 1001
LONG = 10**12  # steps, more than any run has


class _Described:
    """Text of a schedule's settings: its public attributes, without those that change."""

    STATE: ClassVar[tuple[str, ...]] = ()

    def described(self) -> str | None:
        """The schedule as text without its state; None for functions, and for classes of users."""
        is_own = type(self).__module__.startswith("sparse_lib.")
        if not is_own or any(map(callable, vars(self).values())):
            return None
        return self._as_text(without=self.STATE)

    def _as_text(self, without: Sequence[str] = ()) -> str:
        names = [name for name in vars(self) if name[0] != "_" and name not in without]
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({settings})"

    def __repr__(self) -> str:
        return self._as_text()


class HyperParameterSchedule(_Described, ABC):
    """A value that depends on the step. Subclasses implement `compute`.

    Subclasses are found in configs by their lower-cased class name and by ``TYPE``. One with
    state names the attributes in ``STATE`` and changes them in `update`. Where the value is
    a sparsity or a drop fraction, it is clamped to [0, 1] in use. Constructors raise TypeError or
    ValueError, with the argument's name, for what is not finite or out of range.

    >>> from sparse_lib.schedules import make_hyperparameter_schedule
    >>> class Halving(HyperParameterSchedule):
    ...     def compute(self, step):
    ...         return 0.5**step
    >>> make_hyperparameter_schedule({"type": "halving"})(2)
    0.25
    """

    TYPE: ClassVar[str | None] = None
    registry: ClassVar[dict[str, type[HyperParameterSchedule]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if inspect.isabstract(cls):
            return
        if "TYPE" not in cls.__dict__:
            cls.TYPE = cls.__name__.lower()
        for name in (cls.__name__, cls.TYPE):
            if name and not name.startswith("_"):
                HyperParameterSchedule.registry[name.lower()] = cls

    @abstractmethod
    def compute(self, step: int) -> float:
        """Value in effect at a step, a non-negative integer."""

    def __call__(self, step: int, is_update_step: bool = False) -> float:
        """Value at a step; ``is_update_step`` says that masks are updated at this step."""
        return self._number(self.compute(int(step)), step)

    def _number(self, value: Any, step: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{self!r} gave {value!r} at step {step}, which is no number") from None
        if math.isnan(number):
            raise ValueError(f"{self!r} gave NaN at step {step}")
        return number

    def update(self, is_update_step: bool) -> None:
        """Advance the state; called once at the end of each step."""

    def get_min_max_end(self, begin: int, end: int) -> tuple[float, float, float]:
        """Smallest and largest value from ``begin`` to ``end``, inclusive, and the last one."""
        if end < begin:
            raise ValueError(f"end must be at least begin={begin}, not {end}")
        stride = max(1, math.ceil((end - begin) / (_MOST_SAMPLES - 1)))
        values = [self(step) for step in (*range(begin, end, stride), end)]
        return min(values), max(values), values[-1]

    def state_dict(self) -> dict[str, Any]:
        """State to save; empty for functions of the step alone."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; ValueError if a key is missing or unknown."""
        expected = set(self.STATE)
        if set(state) != expected:
            raise ValueError(
                f"state of {type(self).__name__} must have the keys {sorted(expected)}, "
                f"not {sorted(state)}"
            )
        for name in expected:
            setattr(self, name, copy.deepcopy(state[name]))


class Constant(HyperParameterSchedule):
    """``y(t) = value``, any finite number."""

    def __init__(self, value: float) -> None:
        self.value = check_finite(value, "value")

    def compute(self, step: int) -> float:
        return self.value

    def described(self) -> str | None:
        return super().described() and repr(self.value)


class Linear(HyperParameterSchedule):
    """``y(t) = init + slope * t``."""

    def __init__(self, init: float, slope: float) -> None:
        self.init, self.slope = check_finite(init, "init"), check_finite(slope, "slope")

    def compute(self, step: int) -> float:
        return self.init + self.slope * step


class Exp(HyperParameterSchedule):
    """``y(t) = final + (init - final) * exp(gamma * t)``: to ``final``, if gamma is below 0."""

    def __init__(self, init: float, gamma: float, final: float = 1.0) -> None:
        self.init, self.gamma = check_finite(init, "init"), check_finite(gamma, "gamma")
        self.final = check_finite(final, "final")

    def compute(self, step: int) -> float:
        return self.final + _scaled(self.init - self.final, math.e, self.gamma * step)


class Power(HyperParameterSchedule):
    """``y(t) = init * beta**t``, with ``beta`` of at least 0."""

    def __init__(self, init: float, beta: float) -> None:
        self.init, self.beta = check_finite(init, "init"), check_finite(beta, "beta", least=0)

    def compute(self, step: int) -> float:
        return _scaled(self.init, self.beta, step)


class Polynomial(HyperParameterSchedule):
    """``y(t) = final + (init - final) * (1 - x)**power``, ``x = (t - start) / (stop - start)``.

    ``x`` is kept within [0, 1]: ``init`` before ``start``, ``final`` from ``stop`` on. ``start`` is
    at least 0, ``stop`` at least that, ``power`` above 0. (Zhu & Gupta, "To prune, or not to
    prune", 2017, equation 1, where the power is 3.)
    """

    def __init__(
        self, init: float, final: float, start: int, stop: int, power: float = 3.0
    ) -> None:
        self.init, self.final = check_finite(init, "init"), check_finite(final, "final")
        self.start = check_integer(start, "start", 0)
        self.stop = check_integer(stop, "stop", self.start)
        self.power = check_finite(power, "power", above=0)

    def compute(self, step: int) -> float:
        return _decay(self.init, self.final, step, self.start, self.stop, self.power)


class Cubic(HyperParameterSchedule):
    """GraNet's gradual schedule (Liu et al. 2021, equation 1), smooth or as a staircase.

    ``y = s_f + (s_i - s_f) * (1 - x)**3`` with ``x`` kept within [0, 1], from ``init_sparsity`` to
    ``end_sparsity``, which may be lower, between the start step ``t0`` and the end step ``t1``.
    With an interval ``k`` (``prune_every_k_steps``) it is a staircase in whole intervals, as in the
    sparsity library's announcement (its Figure 7): ``x = (t // k - t0 // k) / (t1 // k - t0 //
    k)``. Without, it is smooth: ``x = (t - t0) / (t1 - t0)``. If both ends share an interval, it
    jumps there.
    """

    def __init__(
        self,
        init_sparsity: float,
        end_sparsity: float,
        sparsity_start_step: int,
        sparsity_end_step: int,
        prune_every_k_steps: int | None = None,
    ) -> None:
        self.init_sparsity = check_finite(init_sparsity, "init_sparsity")
        self.end_sparsity = check_finite(end_sparsity, "end_sparsity")
        self.sparsity_start_step = check_integer(sparsity_start_step, "sparsity_start_step", 0)
        self.sparsity_end_step = check_integer(
            sparsity_end_step, "sparsity_end_step", self.sparsity_start_step
        )
        self.prune_every_k_steps = prune_every_k_steps
        if prune_every_k_steps is not None:
            self.prune_every_k_steps = check_integer(prune_every_k_steps, "prune_every_k_steps", 1)

    def compute(self, step: int) -> float:
        interval = self.prune_every_k_steps or 1
        start, stop = self.sparsity_start_step // interval, self.sparsity_end_step // interval
        return _decay(
            self.init_sparsity, self.end_sparsity, int(step) // interval, start, stop, power=3
        )


class Cosine(HyperParameterSchedule):
    """``y(t) = minimum + (init - minimum) * (1 + cos(pi * t / half_period)) / 2``.

    After ``half_period`` steps it stays at ``minimum``, so that a drop fraction really anneals to
    it; with ``compat="cstorch-2.10"`` it comes back up.
    """

    def __init__(
        self, init: float, half_period: float, minimum: float = 0.0, compat: Any = None
    ) -> None:
        self.init, self.minimum = check_finite(init, "init"), check_finite(minimum, "minimum")
        self.half_period = check_finite(half_period, "half_period", above=0)
        self.returns = rules_of(compat).cosine_returns

    def compute(self, step: int) -> float:
        if not self.returns and step >= self.half_period:
            return self.minimum
        wave = (1 + math.cos(math.pi * step / self.half_period)) / 2
        return self.minimum + (self.init - self.minimum) * wave


class Cycling(HyperParameterSchedule):
    """The next value of a list at each mask update (initialisation counts if it is one).

    Between updates the value is that of the last update. It depends on how many updates there were,
    so it has a state, ``index``: how many values were used. After the last one it starts again, or,
    without ``repeat``, stays.
    """

    STATE = ("index",)

    def __init__(self, values: Sequence[float], repeat: bool = True) -> None:
        if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
            raise TypeError(f"values must be a list of numbers, not {values!r}")
        self.values = [check_finite(value, f"values[{i}]") for i, value in enumerate(values)]
        if not self.values:
            raise ValueError("values must hold at least one number")
        self.repeat = check_bool(repeat, "repeat")
        self.index = 0

    def _at(self, index: int) -> float:
        size = len(self.values)
        return self.values[index % size if self.repeat else min(index, size - 1)]

    def compute(self, step: int) -> float:
        return self._at(max(0, self.index - 1))

    def __call__(self, step: int, is_update_step: bool = False) -> float:
        return self._at(self.index) if is_update_step else self.compute(step)

    def update(self, is_update_step: bool) -> None:
        self.index += bool(is_update_step)

    def get_min_max_end(self, begin: int, end: int) -> tuple[float, float, float]:
        """Extremes over all values, and the last value (steps say nothing about updates)."""
        return min(self.values), max(self.values), self.values[-1]


class Periodic(HyperParameterSchedule):
    """``y(t) = values[(t // period) % len(values)]``: a list over fixed spans of steps."""

    def __init__(self, values: Sequence[float], period: int) -> None:
        self.values = Cycling(values).values
        self.period = check_integer(period, "period", 1)

    def compute(self, step: int) -> float:
        return self.values[(step // self.period) % len(self.values)]

    def get_min_max_end(self, begin: int, end: int) -> tuple[float, float, float]:
        """As for any schedule, from one step of each span in one cycle."""
        last = min(end, begin + self.period * len(self.values))
        values = [self(step) for step in (*range(begin, last, self.period), last, end)]
        return min(values), max(values), values[-1]


class Lambda(HyperParameterSchedule):
    """``y(t) = fn(t)``, or ``fn(t, is_update_step)`` if ``fn`` needs two arguments."""

    def __init__(self, fn: Callable[..., float]) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        self.fn = fn
        required = [p for p in positional(fn) or () if p.default is p.empty]
        self._takes_two = sum(p.kind is not p.VAR_POSITIONAL for p in required) >= 2

    def compute(self, step: int) -> float:
        return self(step)

    def __call__(self, step: int, is_update_step: bool = False) -> float:
        value = self.fn(step, is_update_step) if self._takes_two else self.fn(step)
        return self._number(value, step)


def _scaled(factor: float, base: float, exponent: float) -> float:
    """``factor * base**exponent``, infinite where it does not fit a float."""
    try:
        return factor * base**exponent if factor else 0.0
    except OverflowError:
        return math.copysign(math.inf, factor)


def _decay(
    init: float, final: float, step: float, start: float, stop: float, power: float
) -> float:
    if step >= stop:
        return final
    if step <= start:
        return init
    value = final + (init - final) * (1 - (step - start) / (stop - start)) ** power
    return min(max(value, min(init, final)), max(init, final))  # rounding might leave the interval


class UpdateSchedule(_Described, ABC):
    """Says at which steps masks are updated; a function of the step alone."""

    @abstractmethod
    def is_update_step(self, step: int) -> bool:
        """Whether masks are updated at a step; step 0 asks about initialisation."""

    def __call__(self, step: int) -> bool:
        """Same as `is_update_step`."""
        return self.is_update_step(step)

    def last_update(self, num_steps: int) -> int:
        """The last update step of a run of so many steps, 0 if it has none."""
        return next((step for step in range(num_steps, 0, -1) if self.is_update_step(step)), 0)


class FreqSchedule(UpdateSchedule):
    """Steps ``start, start + freq, start + 2 freq, ...`` before ``stop`` (**exclusive**).

    Args:
        freq: At least 1.
        start: At least 0.
        stop: First step without updates, at least ``start``, or None for no end.
    """

    def __init__(self, freq: int = 1, start: int = 0, stop: int | None = None) -> None:
        self.freq = check_integer(freq, "freq", 1)
        self.start = check_integer(start, "start", 0)
        self.stop = None if stop is None else check_integer(stop, "stop", 0)
        if self.stop is not None and self.stop < self.start:
            raise ValueError(f"stop must be at least start, which is {self.start}, not {self.stop}")

    def is_update_step(self, step: int) -> bool:
        if step < self.start or (self.stop is not None and step >= self.stop):
            return False
        return (step - self.start) % self.freq == 0

    def last_update(self, num_steps: int) -> int:
        """As for any update schedule, computed without a look at each step."""
        end = num_steps if self.stop is None else min(num_steps, self.stop - 1)
        return end - (end - self.start) % self.freq if end >= self.start else 0


class ListSchedule(UpdateSchedule):
    """The steps listed, integers of at least 0 in any order."""

    def __init__(self, steps: Iterable[int]) -> None:
        if isinstance(steps, (str, Mapping)) or not isinstance(steps, Iterable):
            raise TypeError(f"steps must be a list of integers, not {steps!r}")
        steps = list(steps)
        if not steps:
            raise ValueError(f"steps must hold at least one step, not {steps!r}")
        self.steps = sorted({check_integer(step, f"steps[{i}]", 0) for i, step in enumerate(steps)})

    def is_update_step(self, step: int) -> bool:
        return int(step) in self.steps


class CallableSchedule(UpdateSchedule):
    """Wherever ``fn(step)`` is true, a function of nothing but the step."""

    def __init__(self, fn: Callable[[int], bool]) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        self.fn = fn

    def is_update_step(self, step: int) -> bool:
        return bool(self.fn(int(step)))


# Their values must lie in [0, 1]; those of the others are clamped in use.
_BOUNDED = (Constant, Cosine, Cubic, Cycling, Periodic, Polynomial)


Level = float | HyperParameterSchedule | Callable[..., float] | Sequence[float] | Mapping[str, Any]
"""A setting that may change by the step, in any form that `make_hyperparameter_schedule` takes."""


def make_hyperparameter_schedule(
    spec: Any, *, key: str = "sparsity", compat: str | Rules | None = None
) -> HyperParameterSchedule:
    """A schedule from what a config may hold.

    Args:
        spec: A number in [0, 1]; a list of them, one per mask update (then the last stays, unless
            the rules repeat lists); a dict with ``type`` and the arguments of that class; a
            function of the step; a schedule, of which one with state is copied.
        key: Name of the setting, for messages.
        compat: Whether lists repeat and cosines return.

    Raises:
        ValueError: If a value, type or argument is not allowed, or ``spec`` is none of these.

    >>> make_hyperparameter_schedule({"type": "cosine", "init": 0.3, "half_period": 10})(5)
    0.15
    """
    rules = rules_of(compat)
    if isinstance(spec, HyperParameterSchedule):
        spec = _in_bounds(spec, key)
        # One with state must not advance in two algorithms at once.
        return copy.deepcopy(spec) if spec.STATE else spec
    if isinstance(spec, Mapping):
        return _from_type(spec, key, rules)
    if isinstance(spec, (list, tuple)):
        values = [check_fraction(value, f"{key}[{i}]") for i, value in enumerate(spec)]
        return build(Cycling, {"values": values, "repeat": rules.lists_repeat}, key)
    # A module is callable too: ``model.apply(Static)``, of the class, would pass it in here.
    if callable(spec) and not isinstance(spec, (type, nn.Module)):
        return Lambda(spec)
    if spec is None or isinstance(spec, (str, bool, type, nn.Module)):
        raise SettingError(
            f"{key} must be a number, a list, a dict with 'type', a function of the step or a "
            f"schedule, not {spec!r}{about_number(spec)}"
        )
    return Constant(check_fraction(spec, key))


def _from_type(spec: Mapping[str, Any], key: str, rules: Rules) -> HyperParameterSchedule:
    arguments = dict(spec)
    name = arguments.pop("type", None)
    known = HyperParameterSchedule.registry
    if not isinstance(name, str):
        raise ValueError(f"{key} as a dict needs a 'type', one of: {', '.join(sorted(known))}")
    if name.lower() not in known:
        raise ValueError(f"{key} has the unknown type {name!r}; {closest(name, known)}")
    cls = known[name.lower()]
    if rules != EXACT and "compat" in inspect.signature(cls).parameters:
        arguments.setdefault("compat", rules)
    return _in_bounds(build(cls, arguments, key), key)


def _in_bounds(schedule: HyperParameterSchedule, key: str) -> HyperParameterSchedule:
    if isinstance(schedule, _BOUNDED):
        low, high, _ = schedule.get_min_max_end(0, LONG)
        check_fraction(low, f"the lowest value of {key}")
        check_fraction(high, f"the highest value of {key}")
    return schedule


_UPDATE_TYPES: dict[str, type[UpdateSchedule]] = {
    "freq": FreqSchedule,
    "freqschedule": FreqSchedule,
    "periodic": FreqSchedule,
    "list": ListSchedule,
    "listschedule": ListSchedule,
}


Updates = int | UpdateSchedule | Callable[[int], bool] | Sequence[int] | Mapping[str, Any]
"""When masks are updated, in any form that `make_update_schedule` takes."""


def make_update_schedule(spec: Any) -> UpdateSchedule:
    """An update schedule from what a config may hold.

    Args:
        spec: None (every step); an integer (that frequency); a dict with any of ``freq``,
            ``start``, ``stop``, or with ``steps``; a list of steps; a function of the step; an
            update schedule, returned as it is.

    Raises:
        ValueError: If a key or value is not allowed; TypeError if ``spec`` is none of these.
    """
    if isinstance(spec, UpdateSchedule):
        return spec
    if spec is None:
        return FreqSchedule()
    if isinstance(spec, (list, tuple)):
        return build(ListSchedule, {"steps": spec}, "update")
    if isinstance(spec, Mapping):
        arguments = dict(spec)
        name = str(arguments.pop("type", "list" if "steps" in arguments else "freq")).lower()
        if name not in _UPDATE_TYPES:
            known = closest(name, _UPDATE_TYPES)
            raise ValueError(f"update has the unknown type {spec['type']!r}; {known}")
        return build(_UPDATE_TYPES[name], arguments, "update")
    if callable(spec) and not isinstance(spec, type):
        return CallableSchedule(spec)
    if isinstance(spec, numbers.Real) and not isinstance(spec, bool):
        return build(FreqSchedule, {"freq": spec}, "update")
    raise TypeError(
        "update must be None, an integer, a dict with 'freq' or 'steps', a list of steps, a "
        f"function of the step or an update schedule, not {spec!r}{about_shares(spec)}"
    )
