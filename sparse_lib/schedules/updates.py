"""Update schedules: at which steps masks are updated.

Step ``t`` is the number of finished optimizer steps; step 0 is initialisation.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparse_lib.checks import about_shares, build, check_integer, closest


class UpdateSchedule(ABC):
    """Says at which steps masks are updated; a function of the step alone."""

    @abstractmethod
    def is_update_step(self, step: int) -> bool:
        """Whether masks are updated at a step; step 0 asks about initialisation."""

    def __call__(self, step: int) -> bool:
        """Same as `is_update_step`."""
        return self.is_update_step(step)

    def described(self) -> str | None:
        """The schedule as text; None for functions, and for classes of users."""
        if not type(self).__module__.startswith("sparse_lib.") or "fn" in vars(self):
            return None
        return repr(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({shown})"


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


class ListSchedule(UpdateSchedule):
    """The steps listed.

    Args:
        steps: One or more integers of at least 0, in any order.
    """

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
    """Wherever ``fn(step)`` is true.

    Args:
        fn: Function of the step, an integer, and of nothing else.
    """

    def __init__(self, fn: Callable[[int], bool]) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        self.fn = fn

    def is_update_step(self, step: int) -> bool:
        return bool(self.fn(int(step)))


_UPDATE_TYPES: dict[str, type[UpdateSchedule]] = {
    "freq": FreqSchedule,
    "freqschedule": FreqSchedule,
    "periodic": FreqSchedule,
    "list": ListSchedule,
    "listschedule": ListSchedule,
}


Updates = int | UpdateSchedule | Callable[[int], bool] | Sequence[int] | Mapping[str, Any]
"""When masks are updated, in any form that `make_update_schedule` takes."""


def make_update_schedule(
    spec: Any, *, key: str = "update", default_freq: int = 1
) -> UpdateSchedule:
    """An update schedule from what a config may hold.

    Args:
        spec: None (every ``default_freq`` steps); an integer (that frequency); a dict with any
            of ``freq``, ``start``, ``stop``, or with ``steps``; a list of steps; a function of
            the step; an update schedule, returned as it is.
        key: Name of the setting, for messages.
        default_freq: Frequency where none is given.

    Raises:
        TypeError: If ``spec`` is none of these.
        ValueError: If a key or value is not allowed.
    """
    if isinstance(spec, UpdateSchedule):
        return spec
    if spec is None:
        return FreqSchedule(default_freq)
    if isinstance(spec, Mapping):
        return _update_from_dict(spec, key, default_freq)
    if isinstance(spec, (list, tuple)):
        return build(ListSchedule, {"steps": spec}, key)
    if callable(spec) and not isinstance(spec, type):
        return CallableSchedule(spec)
    if isinstance(spec, numbers.Real) and not isinstance(spec, bool):
        return build(FreqSchedule, {"freq": spec}, key)
    raise TypeError(
        f"{key} must be None, an integer, a dict with 'freq' or 'steps', a list of steps, a "
        f"function of the step or an update schedule, not {spec!r}{about_shares(spec)}"
    )


def _update_from_dict(spec: Mapping[str, Any], key: str, default_freq: int) -> UpdateSchedule:
    arguments = dict(spec)
    name = arguments.pop("type", "list" if "steps" in arguments else "freq")
    if not isinstance(name, str) or name.lower() not in _UPDATE_TYPES:
        raise ValueError(
            f"{key} has the unknown type {name!r}; {closest(str(name), _UPDATE_TYPES)}"
        )
    cls = _UPDATE_TYPES[name.lower()]
    if cls is FreqSchedule:
        arguments.setdefault("freq", default_freq)
    return build(cls, arguments, key)
