"""Which setting trials choose for a method, where seeds differ by as much as settings do.

A trial is one run at one seed, so its outcome has the noise of a seed. A setting that is better
than another by less than that noise allows has won nothing: the two tie, and of all settings that
tie with the best the one nearest to the default is chosen. What studies of evidence take may be
another setting: `experiments.specs.trials.taken_by` has it.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from experiments.specs.trials import without_seeds
from experiments.store import reference

LEVEL = 0.95
LOWEST, TIE, DEFAULT, ONLY = "best", "tie", "tie, the default", "the only one"
NEAREST = "tie, nearest to the default"


def pooled_sd(groups: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation within groups, pooled; NaN where no group has two values."""
    sums = [(np.var(group, ddof=1) * (len(group) - 1), len(group) - 1)
            for group in groups if len(group) > 1]  # fmt: skip
    degrees = sum(count for _, count in sums)
    return math.sqrt(sum(part for part, _ in sums) / degrees) if degrees else math.nan


@functools.cache
def seed_noise(model: str, dataset: str, metric: str) -> float:
    """Return the spread between seeds that the committed runs of a workload show.

    Args:
        metric: What the last validation measured, such as ``perplexity`` or ``loss``.

    Returns:
        Standard deviation within runs that differ in their seed only, pooled over all of them, in
        the metric's units; NaN where no two such runs are committed.
    """
    groups: dict[Any, list[float]] = {}
    for record in reference.of_workload(model, dataset):
        spec, curve = record["spec"], record["curve"]
        values = [row[metric] for row in curve if row["kind"] == "validation" and metric in row]
        if values:
            same = {name: part for name, part in spec.items() if name not in ("id", "seed")}
            key = json.dumps(without_seeds(same), sort_keys=True)
            groups.setdefault(key, []).append(float(values[-1]))
    return pooled_sd(groups.values())


def tie_margin(noise: float, num_seeds: int = 1) -> float:
    """Return how far two means may be apart without being different at the 95% level.

    Args:
        num_seeds: Seeds of each mean, at least 1.
    """
    return NormalDist().inv_cdf((1 + LEVEL) / 2) * noise * math.sqrt(2 / num_seeds)


def choose(values: Mapping[Any, float], distance: Mapping[Any, float], margin: float) -> Any:
    """Return the setting to choose: of those that tie with the lowest, the nearest to the default.

    Args:
        values: Setting to its outcome; lower is better.
        distance: Setting to how far it is from the default, which has 0.
        margin: What `tie_margin` returns; NaN, where the noise is unknown, lets all settings tie.
    """
    lowest = min(values.values())
    tied = [name for name in values if not values[name] - lowest > margin]
    return min(tied, key=lambda name: (distance[name], values[name]))


def judged(trials: pd.DataFrame, default_rate: float) -> pd.DataFrame:
    """Add what was decided to the trials of one method on one workload.

    Args:
        trials: Columns ``model``, ``dataset``, ``metric``, ``value``, ``seed``, ``learning rate``
            and ``method``; the method that comes first has the default mask settings.
        default_rate: The learning rate that stands without a reason for another.

    Returns:
        The trials with ``noise`` (between seeds), ``margin`` (below it settings tie), ``chosen``
        and ``choice`` in words.
    """
    first = trials.iloc[0]
    settings = trials[["method", "learning rate"]].apply(tuple, axis=1)
    means = trials["value"].groupby(settings).mean()
    seeds = int(trials["seed"].groupby(settings).nunique().min())
    noise = seed_noise(first["model"], first["dataset"], first["metric"])
    margin = tie_margin(noise, seeds)
    # A change of the mask settings counts for more than any change of the rate.
    distance = {
        (method, rate): 100.0 * (method != first["method"]) + abs(math.log(rate / default_rate))
        for method, rate in means.index
    }
    chosen = choose(means.to_dict(), distance, margin)
    lowest = means.min()
    words = []
    for setting in settings:
        is_tied = not means[setting] - lowest > margin  # all of them by an unknown margin
        if setting == chosen:
            is_best, is_default = means[setting] == lowest, distance[setting] == 0
            best = LOWEST if len(means) > 1 else ONLY
            words.append(best if is_best else DEFAULT if is_default else NEAREST)
        elif means[setting] == lowest:
            words.append(LOWEST + ", " + TIE)
        else:
            words.append(TIE if is_tied else "")
    return trials.assign(noise=noise, margin=margin, chosen=settings == chosen, choice=words)
