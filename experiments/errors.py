"""Whose fault an error is: a person's, with one sentence for it, or the code's."""

from __future__ import annotations

import difflib
import errno
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

#: Letters of all allowed values together; of more a sentence shows the nearest three.
MOST_SHOWN = 200


class UserError(ValueError):
    """Input is wrong, or a file is missing or damaged.

    The message is one sentence that names the file, the key or the argument. Any other exception
    that ends a command is a bug, or a file that the operating system refuses.
    """


class CannotWrite(UserError, OSError):
    """A file cannot be written: no room, no permission."""


class Diverged(UserError, FloatingPointError):
    """A training's loss is no finite number any more."""


def explained(error: BaseException) -> bool:
    """Whether an error is a user's, or of a file or a disk that the system refuses."""
    if isinstance(error, UserError):
        return True
    if not isinstance(error, OSError):
        return False
    # Without a number, a library says it in words.
    told = (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return bool(error.filename or error.errno in told)


def sentence(error: BaseException) -> str:
    """The text of an error on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def reason(error: BaseException) -> str:
    """The first cause of another library's error, as one line of bounded length."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split()) or type(error).__name__
    said = f"there is no {said}" if isinstance(error, KeyError) else said
    return said if len(said) <= 200 else f"{said[:200]} ..."


def added(module: str, *parts: str) -> ModuleType:
    """Import a file that is found by its name; raises `UserError` where it is broken, or where it
    does not define one of these parts."""
    file = f"{module.replace('.', '/')}.py"
    try:
        found = importlib.import_module(module)
    except Exception as error:
        said = f"{type(error).__name__}: {reason(error)}"
        raise UserError(f"{file} cannot be imported: {said}") from error
    for part in parts:
        if not hasattr(found, part):
            raise UserError(f"{file} defines no {part}")
    return found


def not_one_of(key: str, value: object, allowed: Iterable[str], found_in: str = "") -> str:
    """The sentence about a value that is none of those allowed.

    Args:
        allowed: values that it could have had; of many the nearest three are shown.
        found_in: the command or the place that lists all of them.
    """
    shown, text, allowed = f"{value!r:.200}", str(value)[:200], sorted(allowed)
    hint, whole = did_you_mean(text, allowed), ", ".join(allowed)
    if len(whole) <= MOST_SHOWN:
        return f"{key} is {shown}, but must be one of {whole}{hint}"
    listed = f", listed by {found_in}" if found_in else ""
    return (
        f"{key} is {shown}, but must be one of {len(allowed):,} values{listed}, such as "
        f"{', '.join(difflib.get_close_matches(text, allowed, n=3, cutoff=0))}{hint}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name; empty where no known one is near."""
    lowered = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Turn what the library refuses into a `UserError` that begins with a place.

    The library refuses a setting by `ValueError`, as its `SettingError` is. It cannot know whether
    an argument comes from a person's file; its caller can. Any other error is a bug.
    """
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}") from error
