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

from experiments.analysis import law_fit
from experiments.analysis.law_cells import DENSE, EMPTY, of_algorithm, waits_for
from experiments.analysis.laws import SparsityLaw
from experiments.analysis.remembered import remembered
from experiments.errors import UserError

#: Draws of the bootstrap behind every band.
DRAWS = 200


@dataclass(frozen=True)
class Misfit:
    """How far losses lie from laws besides noise: no refit to resampled losses shows it.

    Attributes:
        common: Spread, in log loss, of what all cells of one model and budget have in common.
        own: Spread of what is left of the cell means, the noise of seeds taken off.
    """

    common: float
    own: float

    def draws(self, algorithm: str, sparsity: float, weights: float, *, count: int) -> np.ndarray:
        """What may be missed at a place, in log loss, (count,).

        The common part is one for models of about one size, to a factor of two, so that it cancels
        between two methods of a model; the other is one for an algorithm's models of a sparsity.
        Both are one for all budgets.
        """
        line = f"{algorithm}:{sparsity:.6f}" if sparsity else DENSE
        shared = _normal(f"size:{round(np.log2(weights))}", count)
        return self.common * shared + self.own * _normal(f"line:{line}", count)


@functools.lru_cache(maxsize=4096)
def _normal(name: str, count: int) -> np.ndarray:
    """Standard normal numbers that depend on a name alone, (count,)."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(count)


@dataclass(frozen=True)
class Fitted:
    """A law of one algorithm, and its draws of the bootstrap.

    Attributes:
        algorithm: Whose law.
        law: The fit to all rows.
        other: The fit of the form with `SparsityLaw.b_m`.
        draws: Fits to resampled losses; draws of equal number belong together across algorithms.
        rows: What was fitted, one row per run.
        seed_sd: Spread of seeds around their cell, in log loss.
        misfit: What either form misses in what was fitted, over all algorithms.
    """

    algorithm: str
    law: SparsityLaw
    other: SparsityLaw
    draws: tuple[SparsityLaw, ...]
    rows: pd.DataFrame
    seed_sd: float
    misfit: Misfit

    def sample(self, sparsity: Any, nonzero: Any, data: Any) -> np.ndarray:
        """Loss under each draw, (draws, ...), with what the form may miss at each place."""
        drawn = np.stack([np.asarray(law(sparsity, nonzero, data)) for law in self.draws])
        weights = np.asarray(nonzero) / (1 if self.widened else 1 - np.asarray(sparsity))
        places = zip(
            *(np.broadcast_to(part, drawn.shape[1:]).flat for part in (sparsity, weights)),
            strict=True,
        )
        missed = [
            self.misfit.draws(self.algorithm, *place, count=len(self.draws)) for place in places
        ]
        found: np.ndarray = drawn * np.exp(np.array(missed).T.reshape(drawn.shape))
        return found

    def worth(self, sparsity: float, nonzero: float, data: float) -> tuple[float, np.ndarray]:
        """`SparsityLaw.worth` by the law, and under each draw, (draws,)."""
        point = self.law.worth(sparsity, nonzero, data)
        equal = nonzero * (point if np.isfinite(point) else 1.0)
        missed = self.misfit.draws(DENSE, 0.0, equal, count=len(self.draws))
        losses = self.sample(sparsity, nonzero, data) * np.exp(-missed)
        sizes = [law.dense_size(loss, data) for law, loss in zip(self.draws, losses, strict=True)]
        return point, np.array(sizes) / nonzero

    @property
    def widened(self) -> bool:
        """Whether sparse models are Sparse-Wide, whose size is that of dense at equal FLOPs."""
        return bool((self.rows["nonzero"] == self.rows["weights"]).all())

    @property
    def place(self) -> tuple[float, float]:
        """Non-zero weights and data at which a question about one law is asked.

        The size is that of the smallest fitted dense model, at which a dense model and one of
        twice the width at 75% sparsity are trained; the budget is the longest fitted one. More
        seeds, sparsities or larger models move neither.
        """
        dense = self.rows[self.rows["sparsity"] == 0]
        return float(dense["nonzero"].min()), float(self.rows["data"].max())

    def middle(self, sparsity: float) -> float:
        """Non-zero weights of the middle one of the fitted models at a sparsity."""
        return self._kept(float(np.median(self.rows["weights"].unique())), sparsity)

    def largest(self, sparsity: float) -> float:
        """Non-zero weights of the largest fitted model at a sparsity."""
        return self._kept(float(self.rows["weights"].max()), sparsity)

    def _kept(self, weights: float, sparsity: float) -> float:
        return weights if self.widened else weights * (1 - sparsity)

    def extrapolated(self, sparsity: float, nonzero: float, data: float) -> bool:
        """Whether a place lies outside of the sizes or budgets that were fitted at its sparsity.

        A sparsity that was not fitted takes the sizes of the two around it that both have.
        """
        levels = np.array(sorted(self.rows["sparsity"].unique()))
        if not levels[0] <= sparsity <= levels[-1]:
            return True
        around = {levels[levels <= sparsity][-1], levels[levels >= sparsity][0]}
        fitted = [self.rows[self.rows["sparsity"] == level] for level in around]
        weights = nonzero if self.widened else nonzero / (1 - sparsity)
        return not all(
            rows["weights"].min() <= weights * 1.001
            and weights <= rows["weights"].max() * 1.001
            and rows["data"].min() <= data * 1.001
            and data <= rows["data"].max() * 1.001
            for rows in fitted
        )

    def difference_extrapolated(self, sparsity: float, nonzero: float, data: float) -> bool:
        """`extrapolated`, of a model or of the dense one that it is held against."""
        return any(self.extrapolated(level, nonzero, data) for level in (0.0, sparsity))

    def predicted_means(
        self, sparsity: float, nonzero: float, data: float, *, seeds: int
    ) -> np.ndarray:
        """Draws of what the mean loss of so many seeds in a new cell may be."""
        noise = _normal(f"seeds:{self.algorithm}:{sparsity}", len(self.draws))
        scale = self.seed_sd / np.sqrt(seeds)
        return self.sample(sparsity, nonzero, data) * np.exp(scale * noise)


def fit(
    rows: pd.DataFrame, algorithms: Sequence[str] = (), *, draws: int = DRAWS
) -> dict[str, Fitted]:
    """Fit the laws of several algorithms together, with a wild bootstrap over models and seeds.

    All laws are one for dense models: size, data and floor count alike in each, so that algorithms
    differ by what sparsity does alone, also far from what was trained.

    Two forms are fitted: the source's, with ``b_x``, and one with ``b_m`` besides, in which size
    and data act together. The laws are of the first one; draws are of either by turns, so that a
    band holds both.

    A draw turns what the laws leave over in three parts, each through all budgets at once, since
    the budgets of a seed share their training up to the last fifth:

    - what all cells of a model and a budget have in common, by one factor per model, so that bands
      hold what the form itself misses: Webb's six values, as for few clusters (Webb, Canadian
      Journal of Economics, 2023);
    - what is left of a cell's mean, by one sign per algorithm, model and sparsity;
    - each seed's distance from its cell, by one sign per seed of such a line. The means hold seed
      noise, too, so this errs on the side of wide bands.

    The first two are scaled for the number of their clusters and coefficients, as is usual for
    cluster-robust errors: sqrt(G / (G - 1) * (cells - 1) / (cells - coefficients)). Factors and
    signs depend on model, sparsity, algorithm, seed and draw only.

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
    forms = [_fit_form(used, names, acts) for acts in (False, True)]
    drawn = [forms[draw % 2].resampled(draw) for draw in range(draws)]
    found = {}
    for at, (law, other) in enumerate(zip(*(form.laws for form in forms), strict=True)):
        own = of_algorithm(rows, names[at]).reset_index(drop=True)
        mine = used["algorithm"].isin([names[at], DENSE])
        drawn_laws = tuple(laws[at] for laws in drawn)
        seed_sd = _seed_sd(used[mine])
        found[names[at]] = Fitted(names[at], law, other, drawn_laws, own, seed_sd, forms[1].misfit)
    return found


@dataclass(frozen=True)
class _Form:
    """A fit of one form, and what is left over of its rows.

    Attributes:
        theta: Coefficients.
        places: Where the losses were measured.
        expected: Log losses, (rows,).
        parts: What is left over, and whose name and which values its factors have.
        misfit: What is left over besides noise.
    """

    theta: np.ndarray
    places: law_fit.Places
    expected: np.ndarray
    parts: tuple[tuple[np.ndarray, pd.Series, tuple[float, ...]], ...]
    misfit: Misfit

    @property
    def laws(self) -> list[SparsityLaw]:
        """The law of each algorithm, the dense one first."""
        return law_fit.laws(self.theta, self.places)

    def resampled(self, draw: int) -> list[SparsityLaw]:
        """The laws of one draw of the bootstrap."""
        turned = sum(_factors(names, draw, values) * part for part, names, values in self.parts)
        theta = law_fit.least(self.places, self.expected + turned, start=self.theta)
        return law_fit.laws(theta, self.places)


def _fit_form(used: pd.DataFrame, names: Sequence[str], acts_together: bool) -> _Form:
    places = law_fit.places(used, names, acts_together)
    log_loss = np.log(used["loss"].to_numpy(float))
    theta = law_fit.least(places, log_loss)
    expected = law_fit.expected(places, theta)
    residual = log_loss - expected
    cell = used.groupby(_CELL).ngroup().to_numpy()
    sizes = np.bincount(cell)
    means = np.bincount(cell, residual) / sizes
    apart = residual - means[cell]
    apart *= np.sqrt(sizes[cell] / np.maximum(1, sizes[cell] - 1))
    means *= np.sqrt((len(means) - 1) / max(1, len(means) - len(theta)))
    models = used["model"].astype(str)
    lines = used["algorithm"] + "/" + models + "/" + used["sparsity"].astype(str)
    seeds = lines + "/" + used["seed"].astype(str)
    common, own = _shared_part(means, cell, models + "/" + used["data"].astype(str))
    common, own = common * _few(models), own * _few(lines)
    parts = ((common, models, WEBB), (own, lines, SIGNS), (apart, seeds, SIGNS))
    return _Form(theta, places, expected, parts, _misfit(used, common, own, apart))


def _seed_sd(rows: pd.DataFrame) -> float:
    """Spread of seeds around their cell, in log loss."""
    logs = np.log(rows["loss"].astype(float))
    cells = logs.groupby([rows[key] for key in _CELL])
    within = float(((logs - cells.transform("mean")) ** 2).sum())
    return float(np.sqrt(within / max(1, len(rows) - cells.ngroups)))


_CELL = ["algorithm", "model", "sparsity", "data"]


def _misfit(rows: pd.DataFrame, common: np.ndarray, own: np.ndarray, apart: np.ndarray) -> Misfit:
    """What is left over of the rows besides the noise of seeds, by its two parts."""
    parts = rows[_CELL].assign(common=common**2, own=own**2, apart=apart**2)
    cells = parts.groupby(_CELL).agg(
        common=("common", "first"), own=("own", "first"), noise=("apart", "mean"),
        seeds=("apart", "size"),
    ).reset_index()  # fmt: skip
    left = float(cells["own"].mean())
    noise = float(cells["noise"].mean() / cells["seeds"].mean())
    places = cells.groupby(["model", "data"])["common"]
    shared = float(places.first().mean()) - left / float(places.size().mean())
    return Misfit(float(np.sqrt(max(0.0, shared))), float(np.sqrt(max(0.0, left - noise))))


def _shared_part(
    means: np.ndarray, cell: np.ndarray, places: pd.Series
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's part that the cells of one model and budget have in common, and the rest.

    Args:
        means: What is left over of each cell, (cells,).
        cell: Each row's cell.
        places: Each row's model and budget.
    """
    cells = pd.DataFrame({"cell": cell, "place": places}).drop_duplicates("cell").set_index("cell")
    cells["mean"] = means[cells.index]
    common = cells.groupby("place")["mean"].transform("mean").reindex(cell).to_numpy(float)
    return common, means[cell] - common


def _few(clusters: pd.Series) -> float:
    """The factor for a number of clusters."""
    count = clusters.nunique()
    return float(np.sqrt(count / max(1, count - 1)))


#: Factors of mean 0 and variance 1 that a draw turns residuals by.
SIGNS = (-1.0, 1.0)
WEBB = tuple(sign * np.sqrt(square) for sign in SIGNS for square in (0.5, 1.0, 1.5))


def _factors(names: pd.Series, draw: int, values: Sequence[float] = SIGNS) -> np.ndarray:
    """One of the values per name, the same for the same name and draw."""
    codes, unique = pd.factorize(names)
    digests = [hashlib.sha256(f"{draw}|{name}".encode()).digest()[:8] for name in unique]
    drawn = [values[int.from_bytes(digest) % len(values)] for digest in digests]
    return np.array(drawn, float)[codes]


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
                "laws": [astuple(found.law), astuple(found.other)],
                "draws": [astuple(law) for law in found.draws],
                "seed_sd": found.seed_sd,
                "misfit": astuple(found.misfit),
            }
            for name, found in fit(own, names, draws=draws).items()
        }

    facts = f"{np.__version__} {scipy.__version__} {names} {draws} {own.to_json()}"
    laws = {}
    for name, kept in remembered("laws", Path(__file__), facts, make).items():
        law, other, *drawn = (SparsityLaw(*values) for values in (*kept["laws"], *kept["draws"]))
        mine = of_algorithm(own, name).reset_index(drop=True)
        misfit = Misfit(*kept["misfit"])
        laws[name] = Fitted(name, law, other, tuple(drawn), mine, kept["seed_sd"], misfit)
    return laws
