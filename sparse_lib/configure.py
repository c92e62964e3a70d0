"""From a config (a number, a dict, a list, as YAML gives them) to a Group of algorithms.

Three dialects are understood: the one of cstorch 2.2 and later (``algorithm``, ``param_filter``
globs), that of 2.0 and 2.1 (``type``, ``schedule`` for when to update, ``param_name_patterns``
regular expressions) and sideband YAML (``type: sideband``). Every mistake is found here, before
there is a model.
"""

from __future__ import annotations

import importlib
import inspect
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sparse_lib.checks import closest
from sparse_lib.core.algorithm import SparsityAlgorithm, algorithm_classes
from sparse_lib.core.group import Group
from sparse_lib.layers import default_filter
from sparse_lib.masks.shapers import InputGroupScoreShaper, OutputGroupScoreShaper
from sparse_lib.schedules.values import HyperParameterSchedule

_OWN_KEYS = ("algorithm", "type", "schedule", "param_filter", "param_name_patterns")
_IGNORED_KEYS = ("add_summaries", "dump_masks")


class NamePatterns:
    """A filter by regular expressions, searched anywhere in the full parameter name.

    Args:
        patterns: One expression or a list of them, of which one must be found.
        key: Name of the setting, for messages.

    Raises:
        ValueError: If one is no regular expression.
        TypeError: If one is no string, or there is none.
    """

    def __init__(self, patterns: str | Sequence[str], key: str = "param_name_patterns") -> None:
        self.patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(self.patterns, (list, tuple)) or not self.patterns:
            raise TypeError(f"{key} must be a regex, a list or a dict of them, not {patterns!r}")
        for pattern in self.patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"{key} must hold regular expressions, not {pattern!r}")
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{key} {pattern!r} is no regular expression: {error}") from None

    def __call__(self, name: str, param: Tensor) -> bool:
        return any(re.search(pattern, name) for pattern in self.patterns)

    def __repr__(self) -> str:
        return f"regex {self.patterns!r}"


def configure(config: Any) -> Group | None:
    """Make the algorithms that a config describes.

    Args:
        config: A number (that static sparsity); a dict with ``algorithm`` (a class name, in any
            case, of any algorithm defined so far; default static), ``param_filter`` (glob or list
            of globs; default :func:`sparse_lib.layers.default_filter`) and the arguments of that
            algorithm, where ``schedule`` may stand for ``sparsity``; a list of such dicts, of
            which the first match wins; ``{"groups": list, ...defaults}``; any of these under a
            ``sparsity`` key or at ``trainer.init.sparsity``; an algorithm; or None (dense).

    Returns:
        A :class:`Group`, or None for None.

    Raises:
        ValueError: If a key, name or value is not allowed; the message names it.
        TypeError: If a value has a wrong type.

    >>> configure({"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 100}})[0].drop_fraction
    0.3
    """
    importlib.import_module("sparse_lib.algorithms")
    config = _unwrap(config)
    if config is None or isinstance(config, Group):
        return config
    group = Group()
    if isinstance(config, SparsityAlgorithm):
        group.add(default_filter, config)
    elif _is_number(config):
        _add(group, {"sparsity": config})
    elif isinstance(config, Mapping):
        _add(group, config)
    elif isinstance(config, (list, tuple)) and config:
        for entry in config:
            if not isinstance(entry, Mapping):
                raise TypeError(f"a list of sparsity configs must hold dicts, not {entry!r}")
            _extend(group, entry)
    else:
        raise TypeError(
            f"a sparsity config must be a number, a dict or a list of dicts, not {config!r}"
        )
    return group


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _extend(group: Group, config: Mapping[str, Any]) -> None:
    inner = _unwrap(config)
    if isinstance(inner, Mapping):
        _add(group, inner)
    else:
        made = configure(inner)
        if made is None:
            raise ValueError(f"{config!r}, in a list of sparsity configs, describes no algorithm")
        group.extend(made)


def _unwrap(config: Any) -> Any:
    """Take off what surrounds a config: ``sparsity``, ``groups`` or a whole trainer's settings."""
    while isinstance(config, Mapping):
        if "trainer" in config:
            init = _mapping(_mapping(config["trainer"], "trainer").get("init"), "trainer.init")
            config = init.get("sparsity")
        elif set(config) == {"sparsity"} and _is_config(config["sparsity"]):
            config = config["sparsity"]
        elif "groups" in config:
            defaults = {k: v for k, v in config.items() if k not in ("groups", "params")}
            defaults |= _mapping(config.get("params"), "params")
            entries = config["groups"]
            if not isinstance(entries, (list, tuple)) or not entries:
                raise TypeError(f"groups must be a list of dicts, not {entries!r}")
            if not all(isinstance(entry, Mapping) for entry in entries):
                raise TypeError(f"groups must hold dicts, not {entries!r}")
            config = [{**defaults, **entry} for entry in entries]
        else:
            break
    return config


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{key} must be a dict, not {value!r}")
    return value or {}


def _is_config(value: Any) -> bool:
    """False for what is a sparsity (a number, a schedule) rather than a config of its own."""
    if value is None:
        return True
    if isinstance(value, Mapping):
        kind = value.get("type")
        return not (isinstance(kind, str) and kind.lower() in HyperParameterSchedule.registry)
    return isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value)


def _add(group: Group, config: Mapping[str, Any]) -> None:
    """Add the algorithms of one dict, several if its name patterns are a dict."""
    for key in config:
        if not isinstance(key, str):
            raise TypeError(f"keys of a sparsity config must be strings, not {key!r}")
    patterns = config.get("param_name_patterns")
    if patterns is not None and "param_filter" in config:
        raise ValueError("give param_filter or param_name_patterns, not both")
    if not isinstance(patterns, Mapping):
        param_filter = config.get("param_filter")
        if patterns is not None:
            param_filter = NamePatterns(patterns)
        group.add(default_filter if param_filter is None else param_filter, make_algorithm(config))
        return
    if not patterns:
        raise ValueError("param_name_patterns must not be empty")
    common = {k: v for k, v in config.items() if k != "param_name_patterns"}
    for pattern, settings in patterns.items():
        if not isinstance(settings, Mapping):
            raise TypeError(f"param_name_patterns[{pattern!r}] must be a dict, not {settings!r}")
        group.add(NamePatterns([pattern]), make_algorithm({**common, **settings}))


def make_algorithm(config: Mapping[str, Any]) -> SparsityAlgorithm:
    """The algorithm of one dict, in any dialect; filters in it are passed over.

    Args:
        config: ``algorithm`` or ``type``, and the arguments of that class.

    Raises:
        ValueError: If a key, name or value is not allowed; the message names it.
        TypeError: If a value has a wrong type.

    >>> make_algorithm({"type": "set", "sparsity": 0.5, "schedule": 10}).update_schedule
    FreqSchedule(freq=10, start=0, stop=None)
    """
    arguments = {k: v for k, v in config.items() if k not in (*_OWN_KEYS, *_IGNORED_KEYS)}
    if "algorithm" in config and "type" in config:
        raise ValueError("give algorithm or type (its old name), not both")
    name = config.get("algorithm", config.get("type", "static"))
    if not isinstance(name, str):
        raise TypeError(f"algorithm must be a name, not {name!r}")
    if "algorithm" not in config and name.lower() == "sideband":
        name = "static"
        arguments.setdefault("init_method", "topk")
        _convert_groups(arguments)
        if "schedule" in config:
            raise ValueError("schedule is no key of type 'sideband'")
    else:
        _convert_schedules(arguments, config)
        if "tiebreak" in arguments:
            arguments["tie_breaker"] = _tie_breaker(arguments.pop("tiebreak"))
    cls = _find(name)
    _check_keys(cls, arguments)
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"algorithm {name!r}: {error}") from error


def _find(name: str) -> type[SparsityAlgorithm]:
    known = algorithm_classes()
    if name.lower() not in known:
        raise ValueError(f"algorithm {name!r} is unknown; {closest(name, known)}")
    return known[name.lower()]


def _convert_groups(arguments: dict[str, Any]) -> None:
    """Sideband's balanced groups."""
    for key, shaper in (
        ("in_groups", InputGroupScoreShaper),
        ("out_groups", OutputGroupScoreShaper),
    ):
        if key in arguments:
            if "score_shaper" in arguments:
                raise ValueError("give in_groups or out_groups, not both")
            arguments["score_shaper"] = shaper(arguments.pop(key))


def _convert_schedules(arguments: dict[str, Any], config: Mapping[str, Any]) -> None:
    """``schedule`` is the sparsity's since 2.2, and was the updates' in 2.0 and 2.1."""
    pairs = arguments.pop("sparsity_schedule", None)
    if pairs is not None:
        if "sparsity" in arguments or "update" in arguments or "schedule" in config:
            raise ValueError("sparsity_schedule stands alone, without sparsity, update or schedule")
        steps, values = _split(pairs)
        arguments["sparsity"], arguments["update"] = values, {"steps": steps}
        return
    if "schedule" not in config:
        return
    schedule = config["schedule"]
    if "sparsity" not in arguments:
        arguments["sparsity"] = schedule
    elif "type" in config and "update" not in arguments:
        is_default = _is_number(schedule) and schedule == 1
        arguments["update"] = None if is_default else schedule
        if isinstance(schedule, Mapping) and "steps" not in schedule and "freq" not in schedule:
            arguments["update"] = {"freq": 1000, **schedule}  # its default in 2.0 and 2.1
    else:
        raise ValueError("give sparsity or schedule, not both")


def _tie_breaker(spec: Any) -> Any:
    """2.0 and 2.1 wrote ``{"type": "random", "eps": 1e-6}``; exact ties need no ``eps``."""
    name = spec.get("type") if isinstance(spec, Mapping) else spec
    return "first" if name in (None, "none") else name


def _split(pairs: Any) -> tuple[list[Any], list[Any]]:
    is_list = isinstance(pairs, (list, tuple)) and pairs
    if not is_list or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise TypeError(f"sparsity_schedule must be a list of [step, sparsity], not {pairs!r}")
    return [step for step, _ in pairs], [value for _, value in pairs]


def _check_keys(cls: type[SparsityAlgorithm], arguments: Mapping[str, Any]) -> None:
    allowed = constructor_keys(cls)
    for key in arguments:
        if key not in allowed:
            hint = closest(key, {*allowed, *_OWN_KEYS})
            raise ValueError(f"{key!r} is no key for algorithm {cls.__name__!r}; {hint}")


def constructor_keys(cls: type[SparsityAlgorithm]) -> set[str]:
    """Names of the arguments that a class takes, following ``**kwargs`` to its bases."""
    keys: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in base.__dict__:
            continue
        parameters = list(inspect.signature(base.__dict__["__init__"]).parameters.values())[1:]
        keys |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return keys
