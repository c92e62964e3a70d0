"""Laws of a study: loss over non-zero weights, sparsity and data, fitted together with bands.

The form is that of Frantar et al. (ICLR 2024), `experiments.analysis.laws.SparsityLaw`; the laws of
a study's methods are one at sparsity 0. Its exponent of sparsity may have either sign, since a
method may lose by sparsity at equal non-zeros, and a sparse model may learn faster or slower than a
dense one (`SparsityLaw.b_x`).
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Sequence
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
    rows: pd.DataFrame, algorithms: Sequence[str] = (), *, draws: int = DRAWS
) -> dict[str, Fitted]:
    """Fit the laws of several algorithms together, with a wild bootstrap over cells and seeds.

    All laws are one for dense models: size, data and floor count alike in each, so that algorithms
    differ by what sparsity does alone, also far from what was trained.

    A draw flips the signs of what the laws leave over: of the mean of all budgets' residuals of a
    model at a sparsity together, and of each seed's distance from its cell. Lines of one seed share
    their training up to the last fifth, so a seed's budgets flip together. Signs depend on model,
    sparsity, algorithm, seed and draw only.

    Args:
        rows: As `finished` returns them.
        algorithms: The sparse ones, each with its rows; the dense law is always fitted.
        draws: Number of resampled fits.

    Returns:
        By algorithm, `DENSE` first.

    Raises:
        UserError: If the rows of an algorithm are too few; one sentence.
    """
    names = [DENSE, *algorithms]
    for name in names:
        if missing := waits_for(rows, name):
            raise UserError(f"the law of {name} waits for runs: it has {missing}")
    used = rows[rows["algorithm"].isin(names)].reset_index(drop=True)
    places, y = _places(used, names), np.log(used["loss"].to_numpy(float))
    theta = _least(places, y)
    expected = _expected(places, theta)
    residual = y - expected
    cell = used.groupby(_CELL).ngroup().to_numpy()
    sizes = np.bincount(cell)
    means = np.bincount(cell, residual) / sizes
    apart = residual - means[cell]
    apart *= np.sqrt(sizes[cell] / np.maximum(1, sizes[cell] - 1))
    means = means * np.sqrt(len(means) / max(1, len(means) - len(theta)))
    # What one sign turns: a model at a sparsity, and a seed's line, through all of its budgets.
    lines = used["algorithm"] + "/" + used["model"] + "/" + used["sparsity"].astype(str)
    seeds = lines + "/" + used["seed"].astype(str)
    drawn = []
    for draw in range(draws):
        resampled = expected + _signs(lines, draw) * means[cell] + _signs(seeds, draw) * apart
        drawn.append(_laws(_least(places, resampled, start=theta), places))
    found = {}
    for at, law in enumerate(_laws(theta, places)):
        own = of_algorithm(rows, names[at]).reset_index(drop=True)
        spreads = _spreads(own, residual[used["algorithm"].isin([names[at], DENSE]).to_numpy()])
        found[names[at]] = Fitted(names[at], law, tuple(laws[at] for laws in drawn), own, *spreads)
    return found


_CELL = ["algorithm", "model", "sparsity", "data"]
#: Coefficients that all laws share, and those that each algorithm has of its own.
_SHARED, _OWN = 5, 3


def _spreads(rows: pd.DataFrame, residual: np.ndarray) -> tuple[float, float]:
    """`Fitted.cell_sd` and `Fitted.seed_sd` of an algorithm's rows."""
    cell = rows.groupby(_CELL).ngroup().to_numpy()
    sizes = np.bincount(cell)
    means = np.bincount(cell, residual) / sizes
    coefficients = _SHARED + (_OWN if rows["sparsity"].any() else 0)
    within = float(((residual - means[cell]) ** 2).sum() / max(1, len(residual) - len(means)))
    between = float((means**2).sum() / max(1, len(means) - coefficients))
    return float(np.sqrt(max(0.0, between - within / float(np.mean(sizes))))), float(
        np.sqrt(within)
    )


def _signs(names: pd.Series, draw: int) -> np.ndarray:
    """Plus or minus one per name, the same for the same name and draw."""
    codes, unique = pd.factorize(names)
    bits = [hashlib.sha256(f"{draw}|{name}".encode()).digest()[0] & 1 for name in unique]
    return (2.0 * np.array(bits) - 1.0)[codes]


@dataclass(frozen=True)
class _Places:
    """Where losses were measured, as arrays of one length.

    Attributes:
        log_q: Logarithm of the density.
        log_n: Logarithm of the non-zero weights over ``unit_n``.
        log_d: Logarithm of the data over ``unit_d``.
        group: Whose row it is: 0 is dense.
        num_groups: Dense and the algorithms.
        unit_n: Geometric mean of the non-zero weights.
        unit_d: Geometric mean of the data.
    """

    log_q: np.ndarray
    log_n: np.ndarray
    log_d: np.ndarray
    group: np.ndarray
    num_groups: int
    unit_n: float
    unit_d: float


def _places(rows: pd.DataFrame, names: Sequence[str]) -> _Places:
    sparsity, nonzero, data = (rows[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    unit_n, unit_d = (float(np.exp(np.log(values).mean())) for values in (nonzero, data))
    group = rows["algorithm"].map({name: at for at, name in enumerate(names)}).to_numpy(int)
    logs = np.log1p(-sparsity), np.log(nonzero / unit_n), np.log(data / unit_d)
    return _Places(*logs, group, len(names), unit_n, unit_d)


# Coefficients: log of the size term's scale, log b_n, log a_d, log b_d, log floor, which all laws
# share; then for each algorithm the logit of the size term's part that sparsity changes, b_s, b_x.
_LOW = np.array([-12.0, -4.0, -12.0, -3.0, -8.0]), np.array([-12.0, -4.0, -2.0])
_HIGH = np.array([4.0, 0.7, 4.0, 0.7, 3.0]), np.array([12.0, 4.0, 2.0])
#: Of dense rows: no part of the size term depends on sparsity.
_NONE = np.array([-40.0, 0.0, 0.0])


def _terms(places: _Places, theta: np.ndarray) -> tuple[np.ndarray, ...]:
    """Parts of each row's size term, its data term and floor, and its own b_s and b_x."""
    scale, b_n, a_d, b_d, floor = np.exp(theta[:_SHARED])
    own = np.vstack([_NONE, theta[_SHARED:].reshape(-1, _OWN)])[places.group]
    size = scale * np.exp(-b_n * places.log_n)
    share = 1 / (1 + np.exp(-own[:, 0]))
    density = np.exp(own[:, 1] * places.log_q)
    by_data = np.exp(b_d * (theta[2] - places.log_d - own[:, 2] * places.log_q))
    return size, share, density, by_data, np.full_like(size, floor), own[:, 2]


def _total(terms: tuple[np.ndarray, ...]) -> np.ndarray:
    size, share, density, by_data, floor, _ = terms
    total: np.ndarray = size * (share * density + 1 - share) + by_data + floor
    return total


def _expected(places: _Places, theta: np.ndarray) -> np.ndarray:
    """Log loss of each row."""
    return np.log(_total(_terms(places, theta)))


def _jacobian(places: _Places, theta: np.ndarray) -> np.ndarray:
    terms = _terms(places, theta)
    size, share, density, by_data, floor, b_x = terms
    b_n, b_d = np.exp(theta[[1, 3]])
    by_size = size * (share * density + 1 - share)
    seen = theta[2] - places.log_d - b_x * places.log_q
    shared = [by_size, -b_n * places.log_n * by_size, b_d * by_data, b_d * seen * by_data, floor]
    own = [
        size * share * (1 - share) * (density - 1),
        size * share * density * places.log_q,
        -b_d * places.log_q * by_data,
    ]
    columns = [*shared]
    for group in range(1, places.num_groups):
        columns += [np.where(places.group == group, column, 0.0) for column in own]
    found: np.ndarray = np.column_stack(columns) / _total(terms)[:, None]
    return found


def _least(places: _Places, log_loss: np.ndarray, *, start: np.ndarray | None = None) -> np.ndarray:
    """The coefficients of least Huber loss, from one start or the best of several."""
    from scipy.optimize import least_squares

    low, high = (np.append(a, np.tile(b, places.num_groups - 1)) for a, b in (_LOW, _HIGH))
    best = None
    for first in [start] if start is not None else _starts(np.exp(log_loss), places.num_groups - 1):
        solved = least_squares(
            lambda theta: _expected(places, theta) - log_loss,
            np.clip(first, low + 1e-6, high - 1e-6),
            jac=lambda theta: _jacobian(places, theta),
            loss="huber",
            f_scale=HUBER,
            bounds=(low, high),
            max_nfev=300,
            x_scale="jac",
        )
        if best is None or solved.cost < best.cost:
            best = solved
    assert best is not None
    found: np.ndarray = best.x
    return found


def _starts(loss: np.ndarray, num_algorithms: int) -> list[np.ndarray]:
    starts = []
    for share in (0.3, 0.7):
        rest = loss.min() * share
        excess = loss.mean() - rest
        for b_s in (-0.3, 0.5) if num_algorithms else (0.0,):
            for b_d in (0.4, 0.9):
                a_d = (excess / 4) ** (1 / b_d)
                shared = np.log(np.maximum([excess / 2, 0.3, a_d, b_d, rest], 1e-9))
                starts.append(np.append(shared, np.tile([0.0, b_s, 0.0], num_algorithms)))
    return starts


def _laws(theta: np.ndarray, places: _Places) -> list[SparsityLaw]:
    """The law of each group, the dense one first."""
    scale, b_n, a_d, b_d, floor = map(float, np.exp(theta[:_SHARED]))
    found: list[SparsityLaw] = []
    for logit, b_s, b_x in [_NONE, *theta[_SHARED:].reshape(-1, _OWN)]:
        share = float(1 / (1 + np.exp(-logit)))
        parts = (
            (share * scale, float(b_s), (1 - share) * scale) if len(found) else (0.0, 0.0, scale)
        )
        units = places.unit_n, places.unit_d
        found.append(SparsityLaw(*parts, b_n, a_d, b_d, floor, *units, float(b_x)))
    return found


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
    names = [name for name in sorted(set(rows["algorithm"]) - {DENSE}) if not waits_for(rows, name)]
    return {} if waits_for(rows, DENSE) else _kept(rows, names, draws)


def _kept(rows: pd.DataFrame, names: list[str], draws: int) -> dict[str, Fitted]:
    """`fit`, made once for the same rows: every page that shows laws reads them."""
    import scipy

    own = rows[rows["algorithm"].isin([DENSE, *names])].reset_index(drop=True)

    def make() -> dict[str, Any]:
        return {
            name: {
                "law": astuple(found.law),
                "draws": [astuple(law) for law in found.draws],
                "spreads": [found.cell_sd, found.seed_sd],
            }
            for name, found in fit(own, names, draws=draws).items()
        }

    facts = f"{np.__version__} {scipy.__version__} {names} {draws} {own.to_json()}"
    laws = {}
    for name, kept in remembered("laws", Path(__file__), facts, make).items():
        law, *drawn = (SparsityLaw(*values) for values in (kept["law"], *kept["draws"]))
        mine = of_algorithm(own, name).reset_index(drop=True)
        laws[name] = Fitted(name, law, tuple(drawn), mine, *kept["spreads"])
    return laws
