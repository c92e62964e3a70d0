"""Laws of a study: loss over non-zero weights, sparsity and data, fitted per method with bands.

The form is that of Frantar et al. (ICLR 2024), `experiments.analysis.laws.SparsityLaw`. Its
exponent of sparsity may have either sign, since a method may lose by sparsity at equal non-zeros,
and a sparse model may learn faster or slower than a dense one (`SparsityLaw.b_x`).
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.law_cells import DENSE, EMPTY, of_algorithm, waits_for
from experiments.analysis.laws import SparsityLaw
from experiments.analysis.remembered import remembered
from experiments.errors import UserError

#: Draws of the bootstrap behind every band.
DRAWS = 200
#: Huber's bound between squared and absolute errors, in log loss.
HUBER = 0.01


@dataclass(frozen=True)
class Fitted:
    """A law of one algorithm, and its draws of the bootstrap.

    Attributes:
        algorithm: Whose law.
        law: The fit to all rows.
        draws: Fits to resampled losses; draws of equal number belong together across algorithms.
        rows: What was fitted, one row per run.
        cell_sd: Spread of cell means around the law, in log loss, seed noise taken off.
        seed_sd: Spread of seeds around their cell, in log loss.
    """

    algorithm: str
    law: SparsityLaw
    draws: tuple[SparsityLaw, ...]
    rows: pd.DataFrame
    cell_sd: float
    seed_sd: float

    def sample(self, sparsity: Any, nonzero: Any, data: Any) -> np.ndarray:
        """Loss under each draw, (draws, ...)."""
        return np.stack([np.asarray(law(sparsity, nonzero, data)) for law in self.draws])

    @property
    def widened(self) -> bool:
        """Whether sparse models are Sparse-Wide, whose size is that of dense at equal FLOPs."""
        return bool((self.rows["nonzero"] == self.rows["weights"]).all())

    def middle(self, sparsity: float) -> float:
        """Non-zero weights of the middle one of the fitted models at a sparsity."""
        return self._kept(float(np.median(self.rows["weights"].unique())), sparsity)

    def largest(self, sparsity: float) -> float:
        """Non-zero weights of the largest fitted model at a sparsity."""
        return self._kept(float(self.rows["weights"].max()), sparsity)

    def _kept(self, weights: float, sparsity: float) -> float:
        return weights if self.widened else weights * (1 - sparsity)

    def extrapolated(self, sparsity: float, nonzero: float, data: float) -> bool:
        """Whether a place lies outside of the sizes, sparsities or budgets that were fitted."""
        rows = self.rows
        weights = nonzero if self.widened else nonzero / (1 - sparsity)
        return not (
            rows["weights"].min() <= weights * 1.001
            and weights <= rows["weights"].max() * 1.001
            and rows["data"].min() <= data <= rows["data"].max()
            and sparsity <= rows["sparsity"].max()
        )

    def predicted_means(
        self, sparsity: float, nonzero: float, data: float, *, seeds: int
    ) -> np.ndarray:
        """Draws of what the mean loss of so many seeds in a new cell may be."""
        generator = np.random.default_rng(zlib.crc32(f"{self.algorithm}:{sparsity}".encode()))
        spread = np.hypot(self.cell_sd, self.seed_sd / np.sqrt(seeds))
        noise = generator.normal(0, spread, len(self.draws))
        return self.sample(sparsity, nonzero, data) * np.exp(noise)


def fit(
    rows: pd.DataFrame,
    algorithm: str = DENSE,
    *,
    draws: int = DRAWS,
    start: SparsityLaw | None = None,
) -> Fitted:
    """Fit one algorithm's law with a wild bootstrap over cells and seeds.

    A draw flips the signs of what the law leaves over: of the mean of all budgets' residuals of a
    model at a sparsity together, and of each seed's distance from its cell. Lines of one seed share
    their training up to the last fifth, so a seed's budgets flip together. Signs depend on model,
    sparsity, algorithm, seed and draw only, so dense runs flip alike in the fits of all algorithms.

    Args:
        rows: As `finished` returns them; dense rows count for every algorithm.
        algorithm: Whose rows.
        draws: Number of resampled fits.
        start: Where the search begins, such as another fit of nearly the same rows.

    Raises:
        UserError: If the rows are too few; one sentence.
    """
    if missing := waits_for(rows, algorithm):
        raise UserError(f"the law of {algorithm} waits for runs: it has {missing}")
    own = of_algorithm(rows, algorithm).reset_index(drop=True)
    s, n, d = (own[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    y = np.log(own["loss"].to_numpy(float))
    law = fit_law(s, n, d, y, start=start)
    expected = np.log(law(s, n, d))
    residual = y - expected
    cell = own.groupby(["algorithm", "model", "sparsity", "data"]).ngroup().to_numpy()
    means = np.bincount(cell, residual) / np.bincount(cell)
    apart = residual - means[cell]
    num_cells, sizes = len(means), np.bincount(cell)
    freedom = max(1, num_cells - (5 if algorithm == DENSE else 8))
    within = float((apart**2).sum() / max(1, len(y) - num_cells))
    between = float((means**2).sum() / freedom)
    apart *= np.sqrt(sizes[cell] / np.maximum(1, sizes[cell] - 1))
    means = means * np.sqrt(num_cells / freedom)
    # What one sign turns: a model at a sparsity, and a seed's line, through all of its budgets.
    lines = own["algorithm"] + "/" + own["model"] + "/" + own["sparsity"].astype(str)
    seeds = lines + "/" + own["seed"].astype(str)
    found = []
    for draw in range(draws):
        resampled = expected + _signs(lines, draw) * means[cell] + _signs(seeds, draw) * apart
        found.append(fit_law(s, n, d, resampled, start=law))
    seed_sd = float(np.sqrt(within))
    cell_sd = float(np.sqrt(max(0.0, between - within / float(np.mean(sizes)))))
    return Fitted(algorithm, law, tuple(found), own, cell_sd, seed_sd)


def _signs(names: pd.Series, draw: int) -> np.ndarray:
    """Plus or minus one per name, the same for the same name and draw."""
    codes, unique = pd.factorize(names)
    bits = [hashlib.sha256(f"{draw}|{name}".encode()).digest()[0] & 1 for name in unique]
    return (2.0 * np.array(bits) - 1.0)[codes]


#: Bounds of log a_s, b_s, log c_s, log b_n, log a_d, log b_d, log floor, b_x.
_LOW = np.array([-12.0, -4.0, -12.0, -4.0, -12.0, -3.0, -8.0, -2.0])
_HIGH = np.array([4.0, 4.0, 4.0, 0.7, 4.0, 0.7, 3.0, 2.0])


def fit_law(
    sparsity: np.ndarray,
    nonzero: np.ndarray,
    data: np.ndarray,
    log_loss: np.ndarray,
    *,
    start: SparsityLaw | None = None,
) -> SparsityLaw:
    """The law of least Huber loss; all arguments are arrays of one length.

    Where all rows are dense the law has no term of sparsity.
    """
    from scipy.optimize import least_squares

    if start is None:
        unit_n, unit_d = (float(np.exp(np.log(v).mean())) for v in (nonzero, data))
    else:
        unit_n, unit_d = start.unit_n, start.unit_d
    log_q, log_n, log_d = np.log(1 - sparsity), np.log(nonzero / unit_n), np.log(data / unit_d)
    free = np.ones(8, bool)
    if not sparsity.any():
        free[[0, 1, 7]] = False

    def terms(theta: np.ndarray) -> tuple[np.ndarray, ...]:
        size = np.exp(-np.exp(theta[3]) * log_n)
        by_sparsity = np.exp(theta[0] + theta[1] * log_q) * size
        constant = np.exp(theta[2]) * size
        by_data = np.exp(np.exp(theta[5]) * (theta[4] - log_d - theta[7] * log_q))
        return by_sparsity, constant, by_data, np.full_like(size, np.exp(theta[6]))

    def full(part: np.ndarray) -> np.ndarray:
        theta = fixed.copy()
        theta[free] = part
        return theta

    def residuals(part: np.ndarray) -> np.ndarray:
        return np.log(np.sum(terms(full(part)), axis=0)) - log_loss

    def jacobian(part: np.ndarray) -> np.ndarray:
        theta = full(part)
        by_sparsity, constant, by_data, floor = terms(theta)
        b_n, b_d = np.exp(theta[3]), np.exp(theta[5])
        columns = [
            by_sparsity,
            by_sparsity * log_q,
            constant,
            -b_n * log_n * (by_sparsity + constant),
            b_d * by_data,
            b_d * (theta[4] - log_d - theta[7] * log_q) * by_data,
            floor,
            -b_d * log_q * by_data,
        ]
        total = by_sparsity + constant + by_data + floor
        return (np.column_stack(columns) / total[:, None])[:, free]

    best = None
    for fixed in _starts(start, np.exp(log_loss), sparse=bool(free[0])):
        solved = least_squares(
            residuals,
            np.clip(fixed, _LOW + 1e-6, _HIGH - 1e-6)[free],
            jac=jacobian,
            loss="huber",
            f_scale=HUBER,
            bounds=(_LOW[free], _HIGH[free]),
            max_nfev=300,
            x_scale="jac",
        )
        if best is None or solved.cost < best[0]:
            best = solved.cost, full(solved.x)
    assert best is not None
    a_s, c_s, b_n, a_d, b_d, floor = np.exp(best[1][[0, 2, 3, 4, 5, 6]])
    if not free[0]:
        a_s = 0.0
    b_s, b_x = best[1][[1, 7]]
    law = (a_s, b_s, c_s, b_n, a_d, b_d, floor, unit_n, unit_d, b_x)
    return SparsityLaw(*map(float, law))


def _starts(start: SparsityLaw | None, loss: np.ndarray, *, sparse: bool) -> list[np.ndarray]:
    if start is not None:
        kept = np.array([start.a_s, 1, start.c_s, start.b_n, start.a_d, start.b_d, start.floor])
        theta = np.append(np.log(np.maximum(kept, 1e-9)), start.b_x)
        theta[1] = start.b_s
        return [theta]
    starts = []
    for share in (0.3, 0.7):
        rest = loss.min() * share
        excess = loss.mean() - rest
        for b_s in (-0.3, 0.5) if sparse else (0.0,):
            for b_d in (0.4, 0.9):
                first = excess / 4 if sparse else 1e-9
                a_d = (excess / 4) ** (1 / b_d)
                values = [first, 1, excess / 4, 0.3, a_d, b_d, rest]
                theta = np.append(np.log(np.maximum(values, 1e-9)), 0.0)
                theta[1] = b_s
                starts.append(theta)
    return starts


@dataclass(frozen=True)
class Plain:
    """The plain alternative: log loss is linear in the logs of size, data and density."""

    weights: np.ndarray

    def __call__(self, sparsity: Any, nonzero: Any, data: Any) -> Any:
        """Loss; numbers or arrays that broadcast."""
        parts = np.broadcast_arrays(
            1.0, np.log(nonzero), np.log(data), np.log1p(-np.asarray(sparsity))
        )
        return np.exp(sum(w * part for w, part in zip(self.weights, parts, strict=True)))


def fit_plain(rows: pd.DataFrame, algorithm: str = DENSE) -> Plain:
    """The plain alternative by least squares on log loss."""
    own = of_algorithm(rows, algorithm)
    s, n, d = (own[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    design = np.column_stack([np.ones_like(n), np.log(n), np.log(d), np.log1p(-s)])
    return Plain(np.linalg.lstsq(design, np.log(own["loss"].to_numpy(float)), rcond=None)[0])


def fit_all(rows: pd.DataFrame, *, draws: int = DRAWS) -> dict[str, Fitted]:
    """The laws of all algorithms that have enough rows, held-out ones left aside."""
    rows = rows[~rows["held_out"].astype(bool)].sort_values("run").reset_index(drop=True)
    return _fit_all(rows.to_json(), draws)


@functools.lru_cache(maxsize=4)
def _fit_all(text: str, draws: int) -> dict[str, Fitted]:
    import io

    rows = pd.read_json(io.StringIO(text)) if text != EMPTY.to_json() else EMPTY
    if rows.empty:
        return {}
    order = [DENSE, *sorted(set(rows["algorithm"]) - {DENSE})]
    return {name: _kept(rows, name, draws) for name in order if not waits_for(rows, name)}


def _kept(rows: pd.DataFrame, algorithm: str, draws: int) -> Fitted:
    """`fit`, made once for the same rows: every page that shows laws reads them."""
    import scipy

    own = of_algorithm(rows, algorithm).reset_index(drop=True)

    def make() -> dict[str, Any]:
        found = fit(own, algorithm, draws=draws)
        drawn = [astuple(law) for law in found.draws]
        spreads = {"cell_sd": found.cell_sd, "seed_sd": found.seed_sd}
        return {"law": astuple(found.law), "draws": drawn, **spreads}

    facts = f"{np.__version__} {scipy.__version__} {algorithm} {draws} {own.to_json()}"
    kept = remembered("laws", Path(__file__), facts, make)
    law, *drawn = (SparsityLaw(*values) for values in (kept["law"], *kept["draws"]))
    return Fitted(algorithm, law, tuple(drawn), own, kept["cell_sd"], kept["seed_sd"])
