"""A difference of means with its interval, and the word that the interval earns.

The standard deviation is that of the workload, pooled over all of its arms and seeds. Arms are
paired by seed only where seeds explain more than a tenth of the variance: a correlation above
`PAIRED_ABOVE`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
PAIRED_ABOVE = 0.3
#: Degrees of freedom below which no interval is shown.
LEAST_FREEDOM = 2
#: Pairs of runs, less one for each pair of arms, from which on their correlation is measured.
LEAST_PAIRS = 6

SAME, OPPOSITE = "same direction", "opposite"
SMALLER = "smaller than half of it, or nothing"
OPEN, NO_TEST = "not resolved", "no fair test"


class Arm(NamedTuple):
    """One treatment on one model: method, recipe and learning rate."""

    model: str
    method: str
    recipe: str
    rate: float


#: Values of one workload: arm to seed to value.
Cells = Mapping[Arm, Mapping[int, float]]


@dataclass(frozen=True)
class Estimate:
    """Arm a minus arm b.

    Attributes:
        effect: Difference of means, averaged over strata, in the unit of the values.
        low: Lower end of the 95% interval; NaN where the workload has too few seeds.
        se: Standard error of the effect.
        sd: Standard deviation of one run about the mean of its arm.
        better: Probability that a run of a is better than one of b.
        unpaired: Where the interval is of differences by seed, that of all runs.
    """

    effect: float
    low: float
    high: float
    se: float
    sd: float
    seeds: tuple[int, int]
    means: tuple[float, float]
    better: float
    unpaired: tuple[float, float] | None

    @property
    def paired(self) -> bool:
        """Whether the interval is of differences by seed."""
        return self.unpaired is not None

    @property
    def has_interval(self) -> bool:
        """Whether there were seeds enough for one."""
        return math.isfinite(self.low)


def interval(effect: float, se: float, freedom: int) -> tuple[float, float]:
    """The 95% t interval; NaN without enough degrees of freedom."""
    if freedom < LEAST_FREEDOM:
        return math.nan, math.nan
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * se
    return effect - half, effect + half


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, lower and upper end of the 95% t interval of one arm; NaN where there is none."""
    found = np.asarray(values, float)
    if found.size < 2:
        return (float(found.mean()) if found.size else math.nan), math.nan, math.nan
    half = stats.t.ppf((1 + LEVEL) / 2, found.size - 1) * stats.sem(found)
    return float(found.mean()), float(found.mean() - half), float(found.mean() + half)


def pooled(cells: Cells) -> tuple[float, int]:
    """Standard deviation about the means of arms, over all of them, and its degrees of freedom."""
    groups = [np.array(list(by_seed.values()), float) for by_seed in cells.values()]
    freedom = sum(group.size - 1 for group in groups)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return (math.sqrt(squares / freedom) if freedom else math.nan), freedom


def correlation(cells: Cells) -> float:
    """Correlation of the runs of two arms that share a seed, over all pairs of arms of a model.

    NaN where fewer than `LEAST_PAIRS` are there, or runs of an arm are all alike.
    """
    sd, _ = pooled(cells)
    products, pairs = 0.0, 0.0
    for (one, left), (other, right) in itertools.combinations(cells.items(), 2):
        shared = sorted(set(left) & set(right)) if one.model == other.model else []
        if len(shared) >= 3:
            a, b = (np.array([side[seed] for seed in shared]) for side in (left, right))
            products += float(((a - a.mean()) * (b - b.mean())).sum())
            pairs += len(shared) - 1
    return products / pairs / sd**2 if pairs >= LEAST_PAIRS and sd > 0 else math.nan


def estimate(cells: Cells, strata: Sequence[tuple[Arm, Arm]], *, sign: int = 1) -> Estimate:
    """Estimate a minus b.

    Args:
        sign: 1 where larger values are better, -1 where smaller ones are.
    """
    sides = [(cells[a], cells[b]) for a, b in strata]
    sd, freedom = pooled(cells)
    # Weights of strata are the inverse variances of their differences, at a common deviation.
    weights = np.array([len(a) * len(b) / (len(a) + len(b)) for a, b in sides])
    gaps = np.array([_mean(a) - _mean(b) for a, b in sides])
    effect, se = float(weights @ gaps / weights.sum()), sd / math.sqrt(weights.sum())
    shared = correlation(cells)
    differences = [
        np.array([a[seed] - b[seed] for seed in sorted(set(a) & set(b))]) for a, b in sides
    ]
    left = sum(max(0, each.size - 1) for each in differences)
    is_paired = shared > PAIRED_ABOVE and left >= LEAST_FREEDOM
    whole = interval(effect, se, freedom)
    if is_paired:
        kept = [each for each in differences if each.size]
        squares = sum(float(((each - each.mean()) ** 2).sum()) for each in kept)
        count, freedom = sum(each.size for each in kept), left
        effect = float(np.concatenate(kept).mean())
        se = math.sqrt(squares / freedom / count)
    low, high = interval(effect, se, freedom)
    wins = [_better(a, b, sign) for a, b in sides]

    def mean(at: int) -> float:
        return float(np.average([_mean(side[at]) for side in sides], weights=weights))

    return Estimate(
        effect,
        low,
        high,
        se,
        sd,
        seeds=(sum(len(a) for a, _ in sides), sum(len(b) for _, b in sides)),
        means=(mean(0), mean(1)),
        better=float(np.average(wins, weights=weights)),
        unpaired=whole if is_paired else None,
    )


def _mean(by_seed: Mapping[int, float]) -> float:
    return float(np.mean(list(by_seed.values())))


def _better(a: Mapping[int, float], b: Mapping[int, float], sign: int) -> float:
    """Share of pairs of runs in which a is better; half of the ties."""
    first, second = (np.array(list(side.values()), float) * sign for side in (a, b))
    wins = (
        stats.mannwhitneyu(first, second, method="asymptotic").statistic if first.size else math.nan
    )
    return float(wins) / (first.size * second.size)


@dataclass(frozen=True)
class Word:
    """The verdict of an estimate on a published effect.

    Attributes:
        word: `SAME`, `OPPOSITE`, `SMALLER`, `OPEN` or `NO_TEST`.
        size: ``as large``, ``smaller`` or ``larger``; empty without a published size.
    """

    word: str
    size: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word}, {self.size}" if self.size else self.word


def judge(found: Estimate, target: float, *, published: str = "") -> Word:
    """The word of an interval, given the effect that is asked for.

    Args:
        target: The published effect in the same unit, or the smallest of interest with its sign.
        published: Words for the target where it is a published effect, so that its size counts.
    """
    if not found.has_interval:
        return Word(NO_TEST, reason=f"{found.seeds[0]} and {found.seeds[1]} seeds give no interval")
    side = math.copysign(1.0, target)
    low, high = sorted((found.low * side, found.high * side))
    size = abs(target)
    kind = published or "smallest effect of interest"
    ends = target, target / 2, side * low, side * high
    whole, half, begin, end = (f"{part:+.3g}".replace("-", "−") for part in ends)
    if low > 0:
        if not published:
            return Word(SAME, reason="the interval lies on the published side of zero")
        where, says = "as large", "contains"
        if high < size:
            where, says = "smaller", f"ends at {end}, short of"
        elif low > size:
            where, says = "larger", f"begins at {begin}, beyond"
        return Word(SAME, where, f"the interval excludes zero and {says} {whole}, the {kind}")
    if high < 0:
        return Word(OPPOSITE, reason="the interval lies on the other side of zero")
    half = f"{half}, half of the {kind}"
    if high < size / 2:
        return Word(SMALLER, reason=f"the interval contains zero and excludes {half}")
    per_seed = found.se**2 * min(found.seeds) if found.paired else 2 * found.sd**2
    wanted = math.ceil(per_seed * (4 / size) ** 2)
    more = f"; {wanted:,} seeds per method could decide" if wanted > min(found.seeds) else ""
    more = ", but not all of it" if high < size else more
    return Word(OPEN, reason=f"the interval contains zero and {half}{more}")
