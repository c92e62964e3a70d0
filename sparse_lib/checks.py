"""Checks of arguments, each of which raises one clear sentence."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class SettingError(ValueError, TypeError):
    """A setting is wrong: its type, its value, or its name; the message is one sentence.

    What reads settings of a person raises it, so that a caller can tell it from an error of the
    code.
    """


def check_fraction(value: Any, key: str) -> float:
    """Return ``value`` as a float in [0, 1]; SettingError for a bool, NaN or anything else."""
    number = _number(value, f"{key} must be a number between 0 and 1")
    if not 0.0 <= number <= 1.0:  # also false for NaN
        raise SettingError(f"{key} must be between 0 and 1, not {value!r}")
    return number


def check_finite(
    value: Any, key: str, *, least: float = -math.inf, above: float = -math.inf
) -> float:
    """Return ``value`` as a finite float of at least ``least``, or ``above`` a bound.

    Raises:
        SettingError: If it is none.
    """
    number = _number(value, f"{key} must be a number")
    if not math.isfinite(number):
        raise SettingError(f"{key} must be finite, not {value!r}")
    if number < least:
        raise SettingError(f"{key} must be at least {least:g}, not {value!r}")
    if number <= above:
        raise SettingError(f"{key} must be above {above:g}, not {value!r}")
    return number


def check_choice(value: Any, key: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of some texts, else raise SettingError."""
    if value not in choices:
        known = ", ".join(map(repr, choices[:-1]))
        raise SettingError(f"{key} must be {known} or {choices[-1]!r}, not {value!r}")
    return str(value)


def _number(value: Any, must: str) -> float:
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise SettingError(f"{must}, not {value!r}{about_number(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError) as error:
        raise SettingError(f"{must}, not {value!r}") from error


def check_bool(value: Any, key: str) -> bool:
    """Return ``value`` if it is True or False, else raise SettingError."""
    if not isinstance(value, bool):
        raise SettingError(f"{key} must be true or false, not {value!r}")
    return value


def check_integer(value: Any, key: str, least: int) -> int:
    """Return ``value`` as an integer of at least ``least``, else raise SettingError."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    is_whole = is_number and (isinstance(value, int) or math.isfinite(value))
    if not is_whole or int(value) != value:
        raise SettingError(f"{key} must be an integer, not {value!r}{about_shares(value)}")
    if value < least:
        raise SettingError(f"{key} must be at least {least}, not {value!r}")
    return int(value)


def check_seed(value: Any) -> int | None:
    """Return ``value`` as an integer, or None, else raise SettingError."""
    try:
        if not isinstance(value, bool):
            return None if value is None else operator.index(value)
    except TypeError:
        pass
    raise SettingError(f"seed must be an integer or None, not {value!r}")


def about_number(value: Any) -> str:
    """The hint of a message about a number written as a text, such as ``90%``; else nothing."""
    try:
        number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except (AttributeError, TypeError, ValueError):
        return ""
    return f"; write {number:g}"


def about_shares(value: Any) -> str:
    """The hint of a message about a text such as ``2%``, a share of a run; else nothing."""
    is_share = isinstance(value, str) and value.endswith("%")
    return "; the length of a run is not known here, so give steps" if is_share else ""


def closest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest of some names, and all of them."""
    known = sorted(known)
    lowered = {other.lower(): other for other in known}
    match = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    hint = f"did you mean {lowered[match[0]]!r}? " if match else ""
    return f"{hint}Known: {', '.join(known)}"


def positional(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters that take arguments by position; None where a builtin does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]


def build(cls: type, arguments: Mapping[str, Any], key: str) -> Any:
    """``cls(**arguments)``; a wrong argument is a SettingError that starts with ``key``."""
    check_arguments(cls, arguments, key)
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{key}: {error}") from error


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], key: str, hidden: Iterable[str] = ()
) -> None:
    """Raise SettingError unless these are a function's arguments but for the ``hidden`` ones."""
    whole = inspect.signature(function).parameters
    various = [p.name for p in whole.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    parameters = {name: p for name, p in whole.items() if name not in {*various, *hidden}}
    for name in arguments:
        if name not in parameters and not various:
            known = closest(str(name), parameters) if parameters else "it has no keys but 'type'"
            raise SettingError(f"{key} has the unknown key {name!r}; {known}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise SettingError(f"{key} lacks {name!r}; it has {', '.join(parameters)}")
