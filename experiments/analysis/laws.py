"""Laws fitted through finished runs: how the loss falls with the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Range of exponents that a fit may take.
EXPONENTS = (0.01, 3.0)


@dataclass(frozen=True)
class PowerLaw:
    """A loss that falls with the budget: ``floor + scale * (budget / unit) ** -exponent``.

    Attributes:
        floor: Loss at an infinite budget, in the loss's units.
        scale: Excess over the floor at the budget ``unit``, at least 0.
        exponent: Within `EXPONENTS`.
        unit: Geometric mean of the fitted budgets.
        low: Smallest fitted budget.
        high: Largest fitted budget.
    """

    floor: float
    scale: float
    exponent: float
    unit: float
    low: float
    high: float

    def __call__(self, budget: float) -> float:
        """Loss at a budget; NaN outside of the fitted ones, since nothing is extrapolated."""
        if not self.low <= budget <= self.high:
            return float("nan")
        return self.floor + self.scale * (budget / self.unit) ** -self.exponent


def fit_power_law(budgets: Sequence[float], losses: Sequence[float]) -> PowerLaw | None:
    """Fit a saturating power law by least squares.

    Args:
        budgets: Positive budgets, such as FLOPs; at least three different ones.
        losses: The loss reached with each, with its learning rate annealed to the end.

    Returns:
        The law; None for fewer than three budgets or a loss that does not fall with the budget.
        Three points on a convex falling curve are met exactly.
    """
    x, y = np.asarray(budgets, float), np.asarray(losses, float)
    if len(set(x)) < 3:
        return None
    unit = float(np.exp(np.log(x).mean()))

    def solve(exponent: float) -> tuple[float, np.ndarray]:
        design = np.column_stack([np.ones_like(x), (x / unit) ** -exponent])
        found, *_ = np.linalg.lstsq(design, y, rcond=None)
        return float(((design @ found - y) ** 2).sum()), found

    low, high = np.log(EXPONENTS)
    for _ in range(6):
        grid = np.linspace(low, high, 41)
        best = int(np.argmin([solve(np.exp(point))[0] for point in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 40)]
    exponent = float(np.exp((low + high) / 2))
    floor, scale = solve(exponent)[1]
    if scale <= 0:
        return None
    return PowerLaw(float(floor), float(scale), exponent, unit, float(x.min()), float(x.max()))


@dataclass(frozen=True)
class SparsityLaw:
    """Loss over sparsity, non-zero weights and training data (Frantar et al., ICLR 2024, eq. 1).

    ``(a_s (1 - S)^b_s + c_s) N^-b_n + (a_d / D)^b_d + floor``, where N counts non-zero weights in
    units of ``unit_n`` and D steps, tokens or images in units of ``unit_d``. With another ``b_x``
    than 0, which is no part of the source's form, a sparse model sees its data as if they were
    ``D (1 - S)^b_x``: sparsity changes how fast a model learns, not only where it ends. With
    another ``b_m`` than 0, no part of it either, size does, too: ``D (1 - S)^b_x N^b_m``.
    """

    a_s: float
    b_s: float
    c_s: float
    b_n: float
    a_d: float
    b_d: float
    floor: float
    unit_n: float
    unit_d: float
    b_x: float = 0.0
    b_m: float = 0.0

    def __call__(self, sparsity: Any, nonzero: Any, data: Any) -> Any:
        """Loss of a model; numbers or arrays that broadcast."""
        density = 1 - np.asarray(sparsity)
        capacity = self.a_s * density**self.b_s + self.c_s
        sizes = np.asarray(nonzero) / self.unit_n
        size = capacity * sizes**-self.b_n
        seen = np.asarray(data) * density**self.b_x * (sizes**self.b_m if self.b_m else 1.0)
        return size + (self.a_d * self.unit_d / seen) ** self.b_d + self.floor

    def worth(self, sparsity: float, nonzero: float, data: float) -> float:
        """Weights of the dense model of equal loss on equal data, over the sparse one's non-zeros.

        Infinite where no dense model is that good. `multiplier` is this for ``b_x`` = 0, or for
        endless data.
        """
        return self.dense_size(float(self(sparsity, nonzero, data)), data) / nonzero

    def dense_size(self, loss: float, data: float) -> float:
        """Weights of the dense model that reaches a loss on so much data; infinite if none does.

        The smallest one, where large models learn more slowly (``b_m`` < 0).
        """
        if self.b_m:
            sizes = self.unit_n * np.geomspace(1e-6, 1e9, 3001)
            losses = np.asarray(self(0.0, sizes, data))
            reached = np.flatnonzero(losses <= loss)
            if not len(reached) or not reached[0]:
                return float("inf") if not len(reached) else float(sizes[0])
            ends = slice(reached[0] - 1, reached[0] + 1)
            return float(np.exp(np.interp(-loss, -losses[ends], np.log(sizes[ends]))))
        needed = loss - float(self(0.0, np.inf, data))
        if needed <= 0:
            return float("inf")
        return float(self.unit_n * (needed / (self.a_s + self.c_s)) ** (-1 / self.b_n))

    def multiplier(self, sparsity: float) -> float:
        """Weights of the dense model that equals a sparse one, over the sparse one's non-zeros."""
        ratio = (self.a_s * (1 - sparsity) ** self.b_s + self.c_s) / (self.a_s + self.c_s)
        return float(ratio ** (-1 / self.b_n))

    def best_sparsity(
        self,
        nonzero: float,
        compute: float,
        *,
        highest: float = 0.95,
        cost: Callable[[Any], Any] | None = None,
    ) -> float:
        """The sparsity of least loss at equal non-zeros and equal training compute.

        Args:
            nonzero: Non-zero weights of the final model.
            compute: Data that a dense model of that size could be trained on.
            highest: Largest sparsity considered, in (0, 1).
            cost: Sparsities (S,) to the cost of a sample over that of a dense model of as many
                weights, (S,); `gradual_cost` if None.
        """
        levels = np.linspace(0.0, highest, 951)
        losses = self(levels, nonzero, compute / (cost or gradual_cost)(levels))
        return float(levels[int(np.argmin(losses))])


def gradual_cost(sparsity: Any) -> Any:
    """Training FLOPs of gradual pruning over those of a dense model with the final non-zeros.

    Dense for a quarter of the steps, a cubic ramp for half of them, sparse for the last quarter
    (Frantar et al., section 3.1); the mean of the cubic ramp is three quarters of its end.
    """
    sparsity = np.asarray(sparsity)
    return 0.25 + (0.25 + 0.5 * (1 - 0.75 * sparsity)) / (1 - sparsity)


def fit_sparsity_law(
    sparsity: Sequence[float],
    nonzero: Sequence[float],
    data: Sequence[float],
    loss: Sequence[float],
) -> SparsityLaw:
    """Fit `SparsityLaw` by Huber loss (delta 0.01) on the logarithm, best of several starts.

    Args:
        sparsity: Fraction of zero weights of each run, in [0, 1).
        nonzero: Its non-zero weights.
        data: Steps, tokens or images that it was trained on.
        loss: The loss that it reached, above 0.

    Raises:
        ValueError: For fewer than eight runs: the law has seven coefficients.
    """
    from scipy.optimize import least_squares

    s, n, d, y = (np.asarray(values, float) for values in (sparsity, nonzero, data, loss))
    if len(y) < 8:
        raise ValueError(f"{len(y)} runs were given, but a law of seven coefficients needs eight")
    unit_n, unit_d = (float(np.exp(np.log(values).mean())) for values in (n, d))

    def law(logs: np.ndarray) -> SparsityLaw:
        a_s, b_s, c_s, b_n, a_d, b_d, floor = map(float, np.exp(logs))
        return SparsityLaw(a_s, b_s, c_s, b_n, a_d, b_d, floor, unit_n, unit_d)

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(law(logs)(s, n, d)) - np.log(y)

    fits = []
    for exponent_n in (0.2, 0.5):
        for exponent_d in (0.4,):
            for share in (0.3, 0.7):
                rest = max(y.min() * share, 1e-3)
                excess = max(y.mean() - rest, 1e-3)
                start = [excess / 2, 0.5, excess / 3, exponent_n]
                start += [max(excess / 4, 1e-3) ** (1 / exponent_d), exponent_d, rest]
                fits.append(
                    least_squares(
                        residuals,
                        np.log(start),
                        loss="huber",
                        f_scale=0.01,
                        bounds=(-30, 10),
                        max_nfev=2000,
                    )
                )
    return law(min(fits, key=lambda fit: fit.cost).x)
