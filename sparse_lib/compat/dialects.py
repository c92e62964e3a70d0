"""Configs of older documents, as dicts that `sparse_lib.configure` understands.

Two dialects: that of cstorch 2.0 and 2.1 (``type``, ``schedule`` for when to update,
``param_name_patterns`` regular expressions) and sideband YAML (``type: sideband``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sparse_lib.checks import SettingError
from sparse_lib.configure import DIALECTS
from sparse_lib.masks.shapers import InputGroupScoreShaper, OutputGroupScoreShaper

DEFAULT_FREQ = 1000
"""Steps between mask updates where a ``schedule`` does not say."""

_KEYS = ("type", "param_name_patterns")
_IGNORED_KEYS = ("add_summaries", "dump_masks")


class NamePatterns:
    """A filter by regular expressions, searched anywhere in the full parameter name.

    One of the patterns must be found. SettingError if one is no regular expression, or there is
    none.
    """

    def __init__(self, patterns: str | Sequence[str]) -> None:
        key = "param_name_patterns"
        self.patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(self.patterns, (list, tuple)) or not self.patterns:
            raise SettingError(f"{key} must be a regex, a list or a dict of them, not {patterns!r}")
        for pattern in self.patterns:
            if not isinstance(pattern, str):
                raise SettingError(f"{key} must hold regular expressions, not {pattern!r}")
            try:
                re.compile(pattern)
            except re.error as error:
                raise SettingError(f"{key} {pattern!r} is no regular expression: {error}") from None

    def __call__(self, name: str, param: Tensor) -> bool:
        return any(re.search(pattern, name) for pattern in self.patterns)

    def __repr__(self) -> str:
        return f"regex {self.patterns!r}"


def by_pattern(patterns: Any) -> list[tuple[NamePatterns, Mapping[str, Any]]]:
    """The filters of ``param_name_patterns``, each with the settings of its own.

    They are a regular expression, a list of them (one filter), or a dict from one to settings.
    """
    if not isinstance(patterns, Mapping):
        return [(NamePatterns(patterns), {})]
    if not patterns:
        raise SettingError("param_name_patterns must not be empty")
    for pattern, settings in patterns.items():
        if not isinstance(settings, Mapping):
            raise SettingError(f"param_name_patterns[{pattern!r}] must be a dict, not {settings!r}")
    return [(NamePatterns([pattern]), settings) for pattern, settings in patterns.items()]


def translate(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Configs of one algorithm each: one, or as many as there are name patterns in a dict."""
    patterns = config.get("param_name_patterns")
    if patterns is None:
        return [translate_one(config)]
    if "param_filter" in config:
        raise SettingError("give param_filter or param_name_patterns, not both")
    return [
        {**translate_one({**config, **settings}), "param_filter": matches}
        for matches, settings in by_pattern(patterns)
    ]


def translate_one(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of one algorithm, without its name patterns.

    >>> translate_one({"type": "set", "sparsity": 0.5, "schedule": 10})
    {'sparsity': 0.5, 'algorithm': 'set', 'update': 10}
    """
    plain = {k: v for k, v in config.items() if k not in (*_KEYS, *_IGNORED_KEYS)}
    if "type" in config:
        if "algorithm" in config:
            raise SettingError("give algorithm or type (its old name), not both")
        plain["algorithm"] = config["type"]
        if str(config["type"]).lower() == "sideband":
            return _from_sideband(plain)
    pairs = plain.pop("sparsity_schedule", None)
    if pairs is not None:
        if {"sparsity", "update", "schedule"} & plain.keys():
            raise SettingError(
                "sparsity_schedule stands alone, without sparsity, update or schedule"
            )
        steps, plain["sparsity"] = _split(pairs)
        plain["update"] = {"steps": steps}
    if "type" in config and {"sparsity", "schedule"} <= plain.keys() and "update" not in plain:
        schedule = plain["update"] = plain.pop("schedule")
        if isinstance(schedule, Mapping) and not {"steps", "freq"} & schedule.keys():
            plain["update"] = {"freq": DEFAULT_FREQ, **schedule}
    if "tiebreak" in plain:  # {"type": "random", "eps": 1e-6}; exact ties need no eps
        spec = plain.pop("tiebreak")
        name = spec.get("type") if isinstance(spec, Mapping) else spec
        plain["tie_breaker"] = "first" if name in (None, "none") else name
    return plain


def _from_sideband(config: dict[str, Any]) -> dict[str, Any]:
    if "schedule" in config:
        raise SettingError("schedule is no key of type 'sideband'")
    plain = {"init_method": "topk", **config, "algorithm": "static"}
    for key, shaper in (
        ("in_groups", InputGroupScoreShaper),
        ("out_groups", OutputGroupScoreShaper),
    ):
        if key in plain:
            if "score_shaper" in plain:
                raise SettingError("give in_groups or out_groups, not both")
            plain["score_shaper"] = shaper.from_setting(plain.pop(key), key)
    return plain


def _split(pairs: Any) -> tuple[list[Any], list[Any]]:
    is_list = isinstance(pairs, (list, tuple)) and pairs
    if not is_list or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise SettingError(f"sparsity_schedule must be a list of [step, sparsity], not {pairs!r}")
    return [step for step, _ in pairs], [value for _, value in pairs]


DIALECTS[_KEYS] = translate
