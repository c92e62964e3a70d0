"""In what the sides of a comparison differ besides what it is about, by their records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from experiments.analysis import costs
from experiments.specs import trials
from experiments.specs.planned import PlannedStudy

#: A side has taken more than another one if it took more than so many times as much.
EQUAL = 1.01


def spent(records: pd.DataFrame, study: PlannedStudy) -> dict[str, pd.Series]:
    """Return what each run took, by what it is of; the phases that it continues included."""
    return {
        "executed training FLOPs": costs.executed(records, study),
        f"{' or '.join(costs.READ)} read": costs.spent(records, study, costs.READ),
    }


def differences(
    runs: Mapping[str, Sequence[str]], study: PlannedStudy, taken: Mapping[str, pd.Series]
) -> str:
    """Return in which of cost, data and learning rate sides differ; empty where in none.

    Args:
        runs: Ids of the runs of each side, by its name.
        study: The study of these runs.
        taken: What `spent` returns.
    """
    rates = pd.Series({run.id: run.spec.recipe.learning_rate for run in study.runs}, dtype=float)
    found = []
    for name, values in taken.items():
        means = {side: values.reindex(own).mean() for side, own in runs.items()}
        least = min(means.values(), default=math.nan)
        # A side without a value leaves nothing to be compared with.
        if min(means.values()) > 0 and max(means.values()) > EQUAL * least:
            shown = ", ".join(f"{side} = {value / least:.3g}" for side, value in means.items())
            found.append(f"{name}, the least as 1: {shown}")
    chosen = {side: sorted(set(rates.reindex(own).dropna())) for side, own in runs.items()}
    if len({tuple(own) for own in chosen.values()}) > 1:
        shown = ", ".join(
            f"{side} = {' and '.join(f'{rate:g}' for rate in own)}" for side, own in chosen.items()
        )
        found.append(f"learning rates: {shown}")
    found += _untried(runs, study)
    return "; ".join(found)


def _untried(runs: Mapping[str, Sequence[str]], study: PlannedStudy) -> list[str]:
    """For which sides no other rate was tried on their model and data, or at another sparsity."""
    specs = {run.id: run.spec for run in study.runs}
    nowhere: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    for side, own in runs.items():
        planned = [specs[run] for run in own if run in specs]
        tried = [trials.tried_sparsities(spec, study.scale) for spec in planned]
        if not any(tried):
            nowhere.append(side)
        elif not any(
            (spec.final_sparsity or 0.0) in levels
            for spec, levels in zip(planned, tried, strict=True)
        ):
            shown = " and ".join(f"{100 * level:g}%" for level in sorted(set().union(*tried)))
            elsewhere.setdefault(shown, []).append(side)
    found = [f"no other learning rate was tried for {', '.join(nowhere)}"] if nowhere else []
    return found + [
        f"learning rates were tried at {shown} sparsity alone for {', '.join(sides)}"
        for shown, sides in elsewhere.items()
    ]
