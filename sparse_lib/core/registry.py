"""Which algorithms there are, by name, and which arguments each takes."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

_REGISTRY: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def register(cls: type) -> None:
    """Make a subclass of the base class known by its lower-cased name.

    Raises:
        ValueError: If a class in a file of the library's has that name.
    """
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


def lacking_methods(name: str) -> str | None:
    """What a live class of that name, in any case, has yet to define, or None."""
    cls = _REGISTRY.get(name.lower())
    if cls is None or not cls.in_registry or cls.__module__.startswith("sparse_lib.core"):
        return None
    return " and ".join(sorted(getattr(cls, "__abstractmethods__", ()))) or None


def constructor_signature(cls: type) -> inspect.Signature:
    """All arguments of a class, with those that ``**kwargs`` hands to its bases."""
    found: dict[str, inspect.Parameter] = {}
    bases = [base for base in cls.__mro__ if "__init__" in base.__dict__]
    for base in bases:
        parameters = list(inspect.signature(base.__dict__["__init__"]).parameters.values())[1:]
        for p in parameters:
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                kind = p.kind if base is bases[0] else p.KEYWORD_ONLY
                found.setdefault(p.name, p.replace(kind=kind))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return inspect.Signature(sorted(found.values(), key=lambda p: p.kind))


def constructor_keys(cls: type) -> set[str]:
    """Names of the arguments that a class takes, following ``**kwargs`` to its bases."""
    return set(constructor_signature(cls).parameters)
