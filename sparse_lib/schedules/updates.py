"""Update schedules: at which steps masks are updated.

Step ``t`` is the number of finished optimizer steps; step 0 is initialisation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from sparse_lib.checks import check_integer


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
