"""Many workloads at once: a random-effects mean over them, and how well an order of methods
fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.findings.estimate import LEVEL, estimate
from experiments.findings.evidence import Evidence
from experiments.findings.gate import LOSS, WORKLOAD

#: Pairs of algorithms that the forest compares.
PAIRS = (
    ("set", "static"),
    ("rigl", "static"),
    ("rigl", "set"),
    ("granet", "rigl"),
    ("gmp", "rigl"),
)


@dataclass(frozen=True)
class Effect:
    """One workload's relative change of validation loss, a against b, in percent."""

    label: str
    value: float
    se: float


@dataclass(frozen=True)
class Pooled:
    """A random-effects mean.

    Attributes:
        low: Lower end of its 95% interval (Hartung, Knapp, Sidik and Jonkman).
        spread: Standard deviation between workloads, beyond that of seeds (DerSimonian and Laird).
        better: Number of workloads in which a is better: its loss is lower.
    """

    mean: float
    low: float
    high: float
    spread: float
    better: int
    effects: tuple[Effect, ...]


def random_effects(effects: Sequence[Effect]) -> Pooled:
    """Pool effects of workloads; of a single one there is no interval."""
    value, var = np.array([e.value for e in effects]), np.array([e.se for e in effects]) ** 2
    fixed = 1 / var
    heterogeneity = float(fixed @ (value - fixed @ value / fixed.sum()) ** 2)
    scale = fixed.sum() - (fixed**2).sum() / fixed.sum()
    spread = max(0.0, (heterogeneity - (value.size - 1)) / scale) if value.size > 1 else 0.0
    weight = 1 / (var + spread)
    mean, half = float(weight @ value / weight.sum()), math.nan
    if value.size > 1:
        error = math.sqrt(float(weight @ (value - mean) ** 2) / (value.size - 1) / weight.sum())
        half = float(stats.t.ppf((1 + LEVEL) / 2, value.size - 1)) * error
    ordered = tuple(sorted(effects, key=lambda effect: effect.value))
    return Pooled(
        mean, mean - half, mean + half, math.sqrt(spread), int((value < 0).sum()), ordered
    )


def over_workloads(evidence: Evidence, a: str, b: str) -> list[Effect]:
    """Each workload and sparsity with both algorithms: a against b, of the model as it is.

    Of several arms of an algorithm the one with most seeds counts; a workload needs two seeds of
    each.
    """
    runs = evidence.runs
    plain = runs[~runs["trials"] & (runs["transform"] == "") & (runs["first"] == "")]
    losses, found = evidence.values(LOSS), []
    for (model, data, budget, _), rows in plain.groupby(WORKLOAD):
        cells = evidence.cells(rows, losses)
        by_level: dict[float, dict[str, list]] = {}
        kinds = rows[["method", "algorithm", "sparsity", "masks"]].drop_duplicates()
        for row in kinds.itertuples():
            if '"erk"' in row.masks:
                continue
            for arm in cells:
                if arm.method == row.method and len(cells[arm]) > 1:
                    by_level.setdefault(row.sparsity, {}).setdefault(row.algorithm, []).append(arm)
        for sparsity, arms in sorted(by_level.items()):
            if a in arms and b in arms:
                first, second = (max(arms[key], key=lambda arm: len(cells[arm])) for key in (a, b))
                gap = estimate(cells, [(first, second)], sign=-1)
                share = 100 / gap.means[1]
                label = f"{model}, {data}, {budget:g}, {100 * sparsity:g}%"
                if gap.se > 0:
                    found.append(Effect(label, share * gap.effect, share * gap.se))
    return found
