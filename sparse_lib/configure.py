"""From a config (a number, a dict, a list, as YAML gives them) to a Group of algorithms.

Every mistake is found here, before there is a model. Configs of other libraries are translated
first, by the dialects that are registered.
"""

from __future__ import annotations

import difflib
import importlib
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from sparse_lib.checks import SettingError, about_number, build, closest
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.group import Filter, Group
from sparse_lib.core.registry import algorithm_classes, constructor_keys, incomplete_classes
from sparse_lib.layers import default_filter
from sparse_lib.schedules import Constant, HyperParameterSchedule

_OWN_KEYS = ("algorithm", "schedule", "param_filter")


DIALECTS: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]] = {}
"""Translators of other libraries' dicts, by the keys that these have besides arguments.

Each dict goes through all; they make of it the dicts, of one algorithm each, that it stands for.
"""


def configure(config: Any) -> Group | None:
    """Make the algorithms that a config describes.

    Args:
        config: A number (that static sparsity); a dict with ``algorithm`` (a class name, in any
            case, of any algorithm defined so far; default static), ``param_filter`` (glob or list
            of globs; default `sparse_lib.layers.default_filter`) and the arguments of that
            algorithm, where ``schedule`` may stand for ``sparsity``; a list of such dicts, of
            which the first match wins; ``{"groups": list, ...defaults}``; any of these under a
            ``sparsity`` key or at ``trainer.init.sparsity``; an algorithm; or None (dense).

    Returns:
        A `Group`, or None for None.

    Raises:
        SettingError: If a key, a name, or the type or value of one is not allowed; it names it.

    A ``param_filter`` that matches no parameter is refused when the group is applied.

    >>> configure({"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 100}})[0].drop_fraction
    0.3
    """
    importlib.import_module("sparse_lib.algorithms")
    config = _unwrap(config)
    if config is None or isinstance(config, Group):
        return config
    members = list(_members(config))
    return Group(members)


def _members(config: Any) -> Iterator[tuple[Filter, SparsityAlgorithm]]:
    """The filters and algorithms that an unwrapped config describes."""
    if isinstance(config, SparsityAlgorithm):
        yield default_filter, config
    elif isinstance(config, numbers.Real) and not isinstance(config, bool):
        yield from _members({"sparsity": config})
    elif isinstance(config, (list, tuple)) and config:
        for entry in config:
            if not isinstance(entry, Mapping):
                raise SettingError(f"a list of sparsity configs must hold dicts, not {entry!r}")
            if (inner := _unwrap(entry)) is None:
                raise SettingError(
                    f"{entry!r}, in a list of sparsity configs, describes no algorithm"
                )
            yield from _members(inner)
    elif isinstance(config, Mapping):
        for key in config:
            if not isinstance(key, str):
                raise SettingError(f"keys of a sparsity config must be strings, not {key!r}")
        plain: list[Mapping[str, Any]] = [config]
        for translate in DIALECTS.values():
            plain = [made for one in plain for made in translate(one)]
        for one in plain:
            param_filter = one.get("param_filter")
            yield default_filter if param_filter is None else param_filter, make_algorithm(one)
    else:
        raise SettingError(
            "a sparsity config must be a number, a dict or a list of dicts, not "
            f"{config!r}{about_number(config)}"
        )


def _unwrap(config: Any) -> Any:
    """Take off what surrounds a config: ``sparsity``, ``groups`` or a whole trainer's settings."""
    while isinstance(config, Mapping):
        if "trainer" in config:
            init = _inner(config["trainer"], "trainer", "init")
            config = _inner(init, "trainer.init", "sparsity")
        elif set(config) == {"sparsity"} and _is_config(config["sparsity"]):
            config = config["sparsity"]
        elif "groups" in config:
            defaults = {k: v for k, v in config.items() if k not in ("groups", "params")}
            defaults |= _mapping(config.get("params"), "params")
            entries = config["groups"]
            if not isinstance(entries, (list, tuple)) or not entries:
                raise SettingError(f"groups must be a list of dicts, not {entries!r}")
            if not all(isinstance(entry, Mapping) for entry in entries):
                raise SettingError(f"groups must hold dicts, not {entries!r}")
            config = [{**defaults, **entry} for entry in entries]
        else:
            break
    return config


def _inner(value: Any, key: str, name: str) -> Any:
    """The value of a key of a dict, None without the key; raises for a misspelt one."""
    inside = _mapping(value, key)
    close = difflib.get_close_matches(name, map(str, inside), 1, 0.7)
    if name not in inside and close:
        raise SettingError(f"{close[0]!r} is no key of {key}; did you mean {name!r}?")
    return inside.get(name)


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise SettingError(f"{key} must be a dict, not {value!r}")
    return value or {}


def _is_config(value: Any) -> bool:
    """False for what is a sparsity (a number, a schedule) rather than a config of its own."""
    if value is None:
        return True
    if isinstance(value, Mapping):
        kind = value.get("type")
        return not (isinstance(kind, str) and kind.lower() in HyperParameterSchedule.registry)
    return isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value)


def make_algorithm(config: Mapping[str, Any]) -> SparsityAlgorithm:
    """The algorithm of one dict without dialect; a filter in it is passed over.

    >>> make_algorithm({"algorithm": "set", "schedule": 0.5, "update": 10}).update_schedule
    FreqSchedule(freq=10, start=0, stop=None)
    """
    arguments = {k: v for k, v in config.items() if k not in _OWN_KEYS}
    if "schedule" in config:
        if "sparsity" in config:
            raise SettingError(
                f"sparsity is {config['sparsity']!r} and schedule is {config['schedule']!r}; give "
                "sparsity or schedule, not both"
            )
        arguments["sparsity"] = config["schedule"]
    name = config.get("algorithm", "static")
    if not isinstance(name, str):
        raise SettingError(f"algorithm must be a name, not {name!r}")
    cls = _find(name)
    allowed = constructor_keys(cls)
    for key in arguments:
        if key not in allowed:
            hint = closest(key, {*allowed, *_OWN_KEYS, *chain(*DIALECTS)})
            raise SettingError(f"{key!r} is no key for algorithm {cls.__name__!r}; {hint}")
    made = build(cls, arguments, f"algorithm {name!r}")
    for schedule in made.sparsity.schedules if "algorithm" not in config else ():
        if not isinstance(schedule, Constant):
            raise SettingError(
                f"sparsity is {schedule!r}, which needs an algorithm that follows it, such as "
                "'gmp'; without one masks are static, with the sparsity of step 0"
            )
    return made


def _find(name: str) -> type[SparsityAlgorithm]:
    known = algorithm_classes()
    if lacking := incomplete_classes().get(name.lower()):
        raise SettingError(
            f"algorithm {name!r} defines no {lacking}, which its base class leaves to it"
        )
    if name.lower() not in known:
        kinds = [*HyperParameterSchedule.registry]
        if name.lower() in kinds:
            raise SettingError(
                f"{name!r} is a schedule, which an algorithm follows: "
                f"{{'algorithm': 'gmp', 'sparsity': {{'type': {name!r}, ...}}}}"
            )
        if difflib.get_close_matches(name.lower(), kinds) and not difflib.get_close_matches(
            name.lower(), known
        ):
            raise SettingError(f"{name!r} is no type of schedule; {closest(name, kinds)}")
        raise SettingError(f"algorithm {name!r} is unknown; {closest(name, known)}")
    return known[name.lower()]
