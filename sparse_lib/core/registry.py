"""Which algorithms there are, by name, and which arguments each takes."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Iterable
from typing import Any

from sparse_lib.checks import SettingError, closest

_REGISTRY: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def register(cls: type) -> None:
    """Make a subclass known by its lower-cased name; ValueError if the library has that name."""
    key = cls.__name__.lower()
    known = _REGISTRY.get(key)
    if known is not None and known.__module__.startswith("sparse_lib."):
        if known.__module__ != cls.__module__:
            raise ValueError(
                f"the name {cls.__name__!r} belongs to the algorithm {known.__name__} of "
                f"{known.__module__}, in any case; give this class another name"
            )
    _REGISTRY[key] = cls


def algorithm_classes() -> dict[str, Any]:
    """Every live, concrete algorithm by lower-cased class name, sorted by name."""
    return {
        name: cls
        for name, cls in sorted(_REGISTRY.items())
        if not inspect.isabstract(cls) and cls.in_registry
    }


def incomplete_classes() -> dict[str, str]:
    """By lower-cased name, the methods that a live class of a user has yet to define."""
    return {
        name: " and ".join(sorted(cls.__abstractmethods__))
        for name, cls in _REGISTRY.items()
        if inspect.isabstract(cls)
        and cls.in_registry
        and not cls.__module__.startswith("sparse_lib.core")
    }


def constructor_signature(cls: type) -> inspect.Signature:
    """All arguments of a class, with those that ``*args`` and ``**kwargs`` hand to its bases."""
    found: dict[str, inspect.Parameter] = {}
    hands_on = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for base in (base for base in cls.__mro__ if "__init__" in base.__dict__):
        parameters = list(inspect.signature(base.__dict__["__init__"]).parameters.values())[1:]
        for p in parameters:
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                is_by_name = p.VAR_POSITIONAL not in hands_on
                found.setdefault(p.name, p.replace(kind=p.KEYWORD_ONLY) if is_by_name else p)
        hands_on &= {p.kind for p in parameters}
        if inspect.Parameter.VAR_KEYWORD not in hands_on:
            break
    return inspect.Signature(sorted(found.values(), key=lambda p: p.kind))


def constructor_keys(cls: type) -> set[str]:
    """Names of the arguments that a class takes, following ``**kwargs`` to its bases."""
    return set(constructor_signature(cls).parameters)


def check_unknown(cls: type, keys: Iterable[str]) -> None:
    """Raise SettingError for an argument that a class does not take."""
    for key in keys:
        if key == "param_filter":
            raise SettingError(
                f"{cls.__name__} takes no 'param_filter'; give it to sparse_lib.configure, or call "
                "Group.add(filter, algorithm)"
            )
        raise SettingError(
            f"{cls.__name__} takes no {key!r}; {closest(key, constructor_keys(cls))}"
        )


_ARGUMENTS = re.compile(r"^Args:\n(?:    .*\n?)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+)(?: \(.*?\))?: ((?:.*\n?)(?:     .*\n?)*)", re.MULTILINE)
_REFERENCE = re.compile(r"See `\w+`[.;]\s*")


def completed_docstring(cls: type) -> str | None:
    """A class's docstring, with all arguments and their types, in the words of the bases."""
    if not cls.__dict__.get("__doc__"):
        return None
    told, more, doc = dict[str, str](), dict[str, str](), inspect.cleandoc(cls.__doc__ or "")
    for base in cls.__mro__:
        found = _ARGUMENTS.search(inspect.cleandoc(base.__doc__ or ""))
        for name, text in _ARGUMENT.findall(found[0]) if found else ():
            if not (reference := _REFERENCE.match(text)):
                told.setdefault(name, text.rstrip())
            elif text[reference.end() :]:
                more.setdefault(name, text[reference.end() :].rstrip())
    lines = ["Args:"]
    for name, parameter in constructor_signature(cls).parameters.items():
        text = told.get(name, "")
        if name in more:
            text = f"{text.removesuffix('.')};\n        {more[name]}"
        lines.append(f"    {name} ({parameter.annotation}): {text}")
    section = "\n".join(lines) + "\n"
    if _ARGUMENTS.search(doc):
        return _ARGUMENTS.sub(lambda _: section, doc, count=1)
    return f"{doc}\n\n{section}"
