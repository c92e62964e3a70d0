"""What the laws of a study say: effects between methods with bands, and where signs change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from experiments.analysis.law_cells import DENSE
from experiments.analysis.scaling import Fitted

LEVEL = 0.95
#: What a band of both signs says.
NO_ANSWER = "no answer"
#: How far beyond the longest fitted budget figures and tables ask.
BEYOND = 10


def interval(values: np.ndarray, *, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end over the first axis; infinite where too many of the values are."""
    method: Literal["nearest", "linear"] = "nearest" if np.isinf(values).any() else "linear"
    ends = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0, method=method)
    return ends[0], ends[1]


def minus(
    a: Fitted, b: Fitted, sparsity: Any, nonzero: Any, data: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of one method minus that of another at equal everything, and its draws, (draws, ...).

    Against the dense method it is at equal non-zero weights and data, by the law of ``a`` alone,
    which has the dense runs as its sparsity 0.
    """
    base, level = (a, 0.0) if b.algorithm == DENSE else (b, sparsity)
    point = a.law(sparsity, nonzero, data) - base.law(level, nonzero, data)
    return point, a.sample(sparsity, nonzero, data) - base.sample(level, nonzero, data)


def effect(a: Fitted, b: Fitted, sparsity: Any, nonzero: Any, data: Any) -> tuple[Any, Any, Any]:
    """`minus` with its band: all arrays."""
    point, draws = minus(a, b, sparsity, nonzero, data)
    return point, *interval(draws)


def pairs(laws: dict[str, Fitted]) -> list[tuple[str, str]]:
    """Pairs of sparse methods that have laws, Static last in each."""
    order: list[str] = [name for name in ("gmp", "granet", "rigl", "set") if name in laws]
    order += sorted(set(laws) - {*order, "static", DENSE})
    order += ["static"] * ("static" in laws)
    return list(itertools.combinations(order, 2))


def common_levels(a: Fitted, b: Fitted) -> list[float]:
    """Sparsities that both methods were trained at; those of ``a`` where ``b`` is dense."""
    levels = set(a.rows["sparsity"]) - {0.0}
    return sorted(levels if b.algorithm == DENSE else levels & set(b.rows["sparsity"]))


@dataclass(frozen=True)
class Crossing:
    """Where the sign of an effect changes along the data; NaN where it does not.

    Attributes:
        data: By the fits to all rows.
        before: Sign of the effect before it: -1 or 1; 0 where it does not change.
        low: Lower end of the interval over draws that change the same way.
        high: Upper end.
        share: Share of draws that change the same way.
    """

    data: float
    before: int
    low: float
    high: float
    share: float


def crossing(
    difference: Callable[[np.ndarray], np.ndarray],
    draws: Callable[[np.ndarray], np.ndarray],
    data: tuple[float, float],
) -> Crossing:
    """The first change of sign of an effect over data.

    Args:
        difference: Budgets (T,) to effects (T,).
        draws: Budgets (T,) to effects of each draw, (draws, T).
        data: Where to look, from and to.
    """
    grid = np.geomspace(*data, 400)
    at, before = _first_root(grid, difference(grid))
    roots = [_first_root(grid, line) for line in draws(grid)]
    found = np.array([root for root, side in roots if side == before != 0])
    low, high = interval(found) if len(found) else (np.nan, np.nan)
    return Crossing(at, before, float(low), float(high), len(found) / max(1, len(roots)))


def _first_root(grid: np.ndarray, values: np.ndarray) -> tuple[float, int]:
    """Where values first change their sign, and which one they have before; NaN and 0 if never."""
    change = np.flatnonzero(np.sign(values[1:]) * np.sign(values[:-1]) < 0)
    if not len(change):
        return float("nan"), 0
    at = int(change[0])
    share = values[at] / (values[at] - values[at + 1])
    root = float(np.exp(np.log(grid[at]) + share * np.log(grid[at + 1] / grid[at])))
    return root, int(np.sign(values[at]))


def words(sign_low: float, sign_high: float, names: Sequence[str]) -> str:
    """What a band of an effect a - b of losses says: the better one, or no answer."""
    if sign_high < 0:
        return str(names[0])
    if sign_low > 0:
        return str(names[1])
    return NO_ANSWER
