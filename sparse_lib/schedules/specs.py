"""Schedules from what a config may hold: numbers, lists, dicts, functions of the step."""

from __future__ import annotations

import copy
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from sparse_lib.checks import about_shares, build, check_fraction, closest
from sparse_lib.rules import EXACT, Rules, rules_of
from sparse_lib.schedules.updates import (
    CallableSchedule,
    FreqSchedule,
    ListSchedule,
    UpdateSchedule,
)
from sparse_lib.schedules.values import (
    LONG,
    Constant,
    Cosine,
    Cubic,
    Cycling,
    HyperParameterSchedule,
    Lambda,
    Periodic,
    Polynomial,
)

# In configs, their values must lie in [0, 1]; those of the others are clamped in use.
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
        ValueError: If a value, type or argument is not allowed; TypeError if ``spec`` is none of
            these.

    >>> make_hyperparameter_schedule({"type": "cosine", "init": 0.3, "half_period": 10})(5)
    0.15
    """
    rules = rules_of(compat)
    if isinstance(spec, HyperParameterSchedule):
        # One with state must not advance in two algorithms at once.
        return copy.deepcopy(spec) if spec.STATE else spec
    if isinstance(spec, Mapping):
        return _schedule_from_dict(spec, key, rules)
    if isinstance(spec, (list, tuple)):
        values = [check_fraction(value, f"{key}[{i}]") for i, value in enumerate(spec)]
        return build(Cycling, {"values": values, "repeat": rules.lists_repeat}, key)
    # A module is callable too: ``model.apply(Static)``, of the class, would pass it in here.
    if callable(spec) and not isinstance(spec, (type, nn.Module)):
        return Lambda(spec)
    if spec is None or isinstance(spec, (str, bool, type, nn.Module)):
        raise TypeError(
            f"{key} must be a number, a list, a dict with 'type', a function of the step or a "
            f"schedule, not {spec!r}"
        )
    return Constant(check_fraction(spec, key))


def _schedule_from_dict(spec: Mapping[str, Any], key: str, rules: Rules) -> HyperParameterSchedule:
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
    schedule = build(cls, arguments, key)
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
    if isinstance(spec, Mapping):
        return _update_from_dict(spec)
    if isinstance(spec, (list, tuple)):
        return build(ListSchedule, {"steps": spec}, "update")
    if callable(spec) and not isinstance(spec, type):
        return CallableSchedule(spec)
    if isinstance(spec, numbers.Real) and not isinstance(spec, bool):
        return build(FreqSchedule, {"freq": spec}, "update")
    raise TypeError(
        "update must be None, an integer, a dict with 'freq' or 'steps', a list of steps, a "
        f"function of the step or an update schedule, not {spec!r}{about_shares(spec)}"
    )


def _update_from_dict(spec: Mapping[str, Any]) -> UpdateSchedule:
    arguments = dict(spec)
    name = arguments.pop("type", "list" if "steps" in arguments else "freq")
    if not isinstance(name, str) or name.lower() not in _UPDATE_TYPES:
        known = closest(str(name), _UPDATE_TYPES)
        raise ValueError(f"update has the unknown type {name!r}; {known}")
    return build(_UPDATE_TYPES[name.lower()], arguments, "update")
