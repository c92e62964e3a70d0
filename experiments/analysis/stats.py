"""Small-sample statistics over seeds.

With three to five seeds a percentile bootstrap is far too narrow, so intervals and tests here
use Student's t distribution.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
MIN_SEEDS = 3
DIRECTIONS = ("less", "greater", "differ", "equal")


@dataclass(frozen=True)
class Paired:
    """Comparison of two treatments that share their seeds.

    Attributes:
        num_seeds: Number of pairs.
        effect: Mean difference a - b, in the metric's units; NaN without pairs.
        low: Lower end of the two-sided 95% t interval of the difference; NaN below two pairs.
        high: Upper end of that interval.
        p: p value of the alternative that was asked for; NaN where no t test exists.
        p_opposite: p value of the opposite alternative; equal to ``p`` when two-sided.
        means: Means of a and b over the pairs; NaN without pairs, and of shares.
    """

    num_seeds: int
    effect: float
    low: float
    high: float
    p: float
    p_opposite: float
    means: tuple[float, float] = (math.nan, math.nan)


def t_interval(values: Sequence[float], *, level: float = LEVEL) -> tuple[float, float, float]:
    """Return mean, lower and upper end of the two-sided t interval of the mean.

    Args:
        values: One value per seed.
        level: Coverage, in (0, 1).

    Returns:
        ``(mean, low, high)``; the ends are NaN for fewer than two values, all NaN for none.
    """
    values = np.asarray(values, dtype=float)
    if values.size == 0:
        return math.nan, math.nan, math.nan
    mean = float(values.mean())
    if values.size == 1:
        return mean, math.nan, math.nan
    error = values.std(ddof=1) / math.sqrt(values.size)
    from scipy.special import stdtrit

    half = float(stdtrit(values.size - 1, (1 + level) / 2) * error)
    return mean, mean - half, mean + half


def paired(
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    direction: str = "differ",
    margin: float = 0.0,
) -> Paired:
    """Test a against b with a t test over the seeds both have.

    Args:
        a: Seed to value.
        b: Seed to value.
        direction: ``less`` tests a < b - margin, ``greater`` a > b + margin, ``differ`` a != b,
            ``equal`` |a - b| < margin by two one-sided tests (Schuirmann, 1987).
        margin: Smallest difference that counts, in the metric's units; a negative one is a
            loss that the claim allows (``greater`` with -1 tests that a loses less than 1).

    Returns:
        The comparison. Where all differences are equal the t statistic does not exist and both
        p values are NaN.

    Raises:
        ValueError: If the direction is unknown.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction is {direction!r}: it must be {', '.join(DIRECTIONS)}")
    if direction == "equal" and not margin > 0:
        raise ValueError(f"margin is {margin!r}: an equivalence needs one above 0")
    seeds = sorted(set(a) & set(b))
    differences = np.array([a[seed] - b[seed] for seed in seeds], dtype=float)
    effect, low, high = t_interval(differences)
    means = (t_interval([a[seed] for seed in seeds])[0], t_interval([b[seed] for seed in seeds])[0])
    count = differences.size
    if count < 2 or np.ptp(differences) <= 1e-12 * max(1.0, abs(effect)):
        return Paired(count, effect, low, high, math.nan, math.nan, means)
    p, p_opposite = p_values(differences, direction, margin)
    return Paired(count, effect, low, high, float(p), float(p_opposite), means)


def binomial(count: int, total: int, rate: float) -> Paired:
    """Test whether a share of seeds is above a rate: exact one-sided binomial tests.

    Args:
        count: Seeds of the kind that is counted.
        total: All seeds.
        rate: Boundary, in (0, 1).

    Returns:
        The share with its interval of Clopper and Pearson (1934); ``p`` is the chance of as many or
        more at the boundary, ``p_opposite`` that of as many or fewer.
    """
    from scipy.special import betaincinv

    if not total:
        return Paired(0, math.nan, math.nan, math.nan, math.nan, math.nan)
    tail = (1 - LEVEL) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    p, p_opposite = binomial_tails(np.array(count), total, rate)
    return Paired(total, count / total, low, high, float(p), float(p_opposite))


def binomial_tails(count: np.ndarray, total: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the chances of at least, and of at most, so many of ``total`` at a rate."""
    from scipy.special import bdtr, bdtrc

    more = np.where(count > 0, bdtrc(np.maximum(count - 1.0, 0.0), total, rate), 1.0)
    return more, bdtr(count * 1.0, total, rate)


def p_values(
    differences: np.ndarray, direction: str, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the p value of the alternative and that of its opposite, as `paired` defines them.

    Args:
        differences: Paired differences, ``[..., seeds]`` with at least two seeds that differ.
        direction: One of `DIRECTIONS`.
        margin: As in `paired`.

    Returns:
        Two arrays of the leading shape.
    """
    from scipy.special import stdtr

    count = differences.shape[-1]
    mean, error = differences.mean(-1), differences.std(-1, ddof=1) / math.sqrt(count)
    degrees = count - 1
    if direction == "differ":
        p = 2 * stdtr(degrees, -np.abs(mean / error))
        return p, p
    if direction == "equal":
        inside = np.maximum(*(stdtr(degrees, (side * mean - margin) / error) for side in (1, -1)))
        return inside, 1.0 - inside
    sign = -1.0 if direction == "less" else 1.0
    # The claim is contradicted by a difference against it, not by one smaller than the margin;
    # where it allows a loss, by a larger loss.
    forward = stdtr(degrees, -(sign * mean - margin) / error)
    backward = stdtr(degrees, (sign * mean - min(margin, 0.0)) / error)
    return forward, backward


def holm(p_values: Mapping[str, float], *, count: int | None = None) -> dict[str, float]:
    """Return Holm's step-down adjusted p values.

    Args:
        p_values: Name to p value; a NaN counts in the number of tests and stays NaN.
        count: Number of tests, at least that of the p values: the rest count as p values of 1.

    Returns:
        Name to adjusted p value, in the order given. Source: Holm (1979).
    """
    count = len(p_values) if count is None else count
    ordered = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted: dict[str, float] = dict.fromkeys(p_values, math.nan)
    running = 0.0
    for rank, (p, name) in enumerate(ordered):
        running = max(running, min(1.0, (count - rank) * p))
        adjusted[name] = running
    return adjusted


def benjamini_hochberg(
    p_values: Mapping[str, float], *, count: int | None = None
) -> dict[str, float]:
    """Return p values adjusted for the false discovery rate, step-up.

    Arguments and result as in :func:`holm`. Source: Benjamini and Hochberg (1995).
    """
    count = len(p_values) if count is None else count
    ordered = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted: dict[str, float] = dict.fromkeys(p_values, math.nan)
    running = 1.0
    for rank in range(len(ordered), 0, -1):
        p, name = ordered[rank - 1]
        running = min(running, p * count / rank)
        adjusted[name] = running
    return adjusted


def distinguishable(
    value: float, stderr: float | None, chance: float | None, *, num_items: float | None = None
) -> bool | None:
    """Return whether a score differs from chance at the 95% level (normal approximation).

    Args:
        value: Measured score.
        stderr: Its standard error over test items.
        chance: Score of guessing.
        num_items: Test items; where all came out alike, so that the standard error is 0, the one
            that guessing right with probability `chance` has takes its place.

    Returns:
        None where the standard error or the chance level is unknown.
    """
    if stderr is None or chance is None or math.isnan(stderr) or math.isnan(chance):
        return None
    if stderr == 0 and num_items and 0 < chance < 1:
        stderr = math.sqrt(chance * (1 - chance) / num_items)
    if stderr == 0:
        return bool(value != chance)
    return bool(abs(value - chance) > NormalDist().inv_cdf((1 + LEVEL) / 2) * stderr)


def against_chance(
    value: float, stderr: float | None, chance: float | None, *, num_items: float | None = None
) -> str:
    """Say how a score lies to chance: above, below, not distinguishable, or not known.

    Arguments as in :func:`distinguishable`.
    """
    apart = distinguishable(value, stderr, chance, num_items=num_items)
    if apart is None or chance is None:
        return "not known"
    if not apart:
        return "not distinguishable from chance"
    return "above chance" if value > chance else "below chance"
