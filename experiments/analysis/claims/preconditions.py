"""Conditions under which a comparison of runs says something (`published/policy.yaml`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.analysis import stats
from experiments.analysis.claims.links import Namer, name_of
from experiments.specs import trials
from experiments.specs.run import RunSpec


def not_learned(
    metric: str, dense: pd.DataFrame, rules: Mapping[str, Any], *, dataset: str | None = None
) -> str:
    """Why the dense runs show that the task was not learned; empty where they learned it.

    Args:
        metric: What is compared.
        dense: The dense runs of the workload, with the column ``value`` in the metric's units; a
            workload without any has no such condition.
        rules: `published/policy.yaml`.
        dataset: Name of the data, which may have bounds of its own.
    """
    bounds = rules["learned"].get(metric)
    if bounds is not None:
        bounds = bounds.get("datasets", {}).get(dataset, bounds)
    if bounds is None or dense.empty:
        return ""
    mean = float(dense["value"].mean())
    if mean < bounds.get("least", float("-inf")):
        return f"dense reaches {mean:.3g} {metric}; it takes {bounds['least']:g}: {bounds['why']}"
    if mean > bounds.get("most", float("inf")):
        return f"dense ends at {mean:.3g} {metric}, above {bounds['most']:g}: {bounds['why']}"
    return ""


def not_trained(metric: str, sides: Mapping[str, pd.DataFrame], rules: Mapping[str, Any]) -> str:
    """Which side ends where guessing does; empty where none does.

    Args:
        metric: What is compared.
        sides: Name of each side and its runs, with the column ``value`` in the metric's units.
        rules: `published/policy.yaml`.
    """
    bounds = rules["trained"].get(metric)
    if bounds is None:
        return ""
    least, most = bounds.get("least", float("-inf")), bounds.get("most", float("inf"))
    for name, side in sides.items():
        mean = float(side["value"].mean())
        if not least <= mean <= most:
            bound = f"it takes {least:g}" if mean < least else f"above {most:g}"
            return f"{name} ends at {mean:.3g} {metric}, {bound}: {bounds['why']}"
    return ""


def at_chance(metric: str, sides: Sequence[pd.DataFrame], rules: Mapping[str, Any]) -> str:
    """Why the scores say nothing: no side is apart from guessing; empty where one is.

    Args:
        metric: What is compared.
        sides: The runs of each side, with ``value``, ``stderr``, ``chance`` and ``num_items``.
        rules: `published/policy.yaml`.
    """
    if metric not in rules["above_chance"]:
        return ""
    for side in sides:
        for row in side.itertuples():
            apart = stats.distinguishable(
                row.value, row.stderr, row.chance, num_items=row.num_items
            )
            if apart and row.value > row.chance:
                return ""
    return "no score of either side is above chance"


def not_annealed(specs: Sequence[RunSpec], rules: Mapping[str, Any]) -> str:
    """Which runs end before their learning rate has fallen; empty where all have.

    Args:
        specs: The runs' specs.
        rules: `published/policy.yaml`.
    """
    share, recipes = rules["annealed"], [spec.recipe for spec in specs]
    high = [own for own in recipes if own.min_learning_rate > share * own.learning_rate]
    if not high:
        return ""
    return f"{len(high)} of {len(recipes)} runs end above {share:.0%} of their peak rate"


def at_end_of_rates(
    specs: Sequence[RunSpec],
    tried: Mapping[tuple[Any, ...], Collection[float]],
    name: Namer = name_of,
) -> str:
    """Which runs have the least or largest learning rate that was tried; empty where none has.

    Where the best rate lies at an end of the range, a better one may lie beyond it, and a
    comparison of methods is one of how far each was tuned.

    Args:
        specs: The runs' specs.
        tried: What `trials.tried_rates` returns; runs whose method has no trials on their model and
            data have no such condition.
        name: Gives the words of a side, which here is a method.
    """
    ends: dict[str, None] = {}
    for spec in specs:
        rates, rate = tried.get(trials.place_of(spec), ()), spec.recipe.learning_rate
        if len(rates) > 1:
            low, high = min(rates), max(rates)
            if not low * (1 + 1e-9) < rate < high * (1 - 1e-9):
                method = name({"method": spec.method})
                ends[f"{method} at {rate:g} (tried {low:g} to {high:g})"] = None
    if not ends:
        return ""
    return f"learning rates at the end of what was tried: {', '.join(ends)}"
