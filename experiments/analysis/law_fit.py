"""The fit of laws to rows of losses: least Huber loss of log losses, by coefficients all at once.

One law per algorithm, all of them one for dense models: scale and exponent of the size term, the
data term and the floor are shared, and each algorithm has its own part of the size term that
sparsity changes, ``b_s`` and ``b_x`` (`experiments.analysis.laws.SparsityLaw`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.law_cells import DENSE, of_algorithm
from experiments.analysis.laws import SparsityLaw

#: Huber's bound between squared and absolute errors, in log loss.
HUBER = 0.01


@dataclass(frozen=True)
class Places:
    """Where losses were measured, as arrays of one length.

    Attributes:
        log_q: Logarithm of the density.
        log_n: Logarithm of the non-zero weights over ``unit_n``.
        log_d: Logarithm of the data over ``unit_d``.
        group: Whose row it is: 0 is dense.
        num_groups: Dense and the algorithms.
        acts_together: Whether ``b_m`` is fitted; else it is 0.
        unit_n: Geometric mean of the non-zero weights.
        unit_d: Geometric mean of the data.
    """

    log_q: np.ndarray
    log_n: np.ndarray
    log_d: np.ndarray
    group: np.ndarray
    num_groups: int
    acts_together: bool
    unit_n: float
    unit_d: float


def places(rows: pd.DataFrame, names: Sequence[str], acts_together: bool) -> Places:
    """The rows of some algorithms as arrays; the dense one is the first name."""
    sparsity, nonzero, data = (rows[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    unit_n, unit_d = (float(np.exp(np.log(values).mean())) for values in (nonzero, data))
    group = rows["algorithm"].map({name: at for at, name in enumerate(names)}).to_numpy(int)
    logs = np.log1p(-sparsity), np.log(nonzero / unit_n), np.log(data / unit_d)
    return Places(*logs, group, len(names), acts_together, unit_n, unit_d)


# Coefficients: log of the size term's scale, log b_n, log a_d, log b_d, log floor and b_m, which
# all laws share; then for each algorithm the logit of the size term's part that sparsity changes,
# b_s and b_x. Where b_m is not fitted, it is left out.
_SHARED, _OWN = 6, 3
_B_M = 5
#: How near to an end of its range a coefficient counts as being there.
NEAR = 1e-3
_LOW = np.array([-12.0, -4.0, -12.0, -3.0, -8.0, -1.5]), np.array([-12.0, -4.0, -2.0])
_HIGH = np.array([4.0, 0.7, 4.0, 0.7, 3.0, 1.5]), np.array([12.0, 4.0, 2.0])
#: Of dense rows: no part of the size term depends on sparsity.
_NONE = np.array([-40.0, 0.0, 0.0])


def _terms(places: Places, theta: np.ndarray) -> tuple[np.ndarray, ...]:
    """Parts of each row's size term, its data term and floor, and the data that it sees.

    ``theta`` has ``b_m``.
    """
    scale, b_n, _, b_d, floor = np.exp(theta[:_B_M])
    own = np.vstack([_NONE, theta[_SHARED:].reshape(-1, _OWN)])[places.group]
    size = scale * np.exp(-b_n * places.log_n)
    share = 1 / (1 + np.exp(-own[:, 0]))
    density = np.exp(own[:, 1] * places.log_q)
    seen = places.log_d + own[:, 2] * places.log_q + theta[_B_M] * places.log_n
    by_data = np.exp(b_d * (theta[2] - seen))
    return size, share, density, by_data, np.full_like(size, floor), seen


def _total(terms: tuple[np.ndarray, ...]) -> np.ndarray:
    size, share, density, by_data, floor, _ = terms
    total: np.ndarray = size * (share * density + 1 - share) + by_data + floor
    return total


def _whole(places: Places, theta: np.ndarray) -> np.ndarray:
    """The coefficients with ``b_m``."""
    return theta if places.acts_together else np.insert(theta, _B_M, 0.0)


def expected(places: Places, theta: np.ndarray) -> np.ndarray:
    """Log loss of each row."""
    return np.log(_total(_terms(places, _whole(places, theta))))


def jacobian(places: Places, theta: np.ndarray) -> np.ndarray:
    theta = _whole(places, theta)
    terms = _terms(places, theta)
    size, share, density, by_data, floor, seen = terms
    b_n, b_d = np.exp(theta[[1, 3]])
    by_size = size * (share * density + 1 - share)
    shared = [
        by_size,
        -b_n * places.log_n * by_size,
        b_d * by_data,
        b_d * (theta[2] - seen) * by_data,
        floor,
        -b_d * places.log_n * by_data,
    ]
    own = [
        size * share * (1 - share) * (density - 1),
        size * share * density * places.log_q,
        -b_d * places.log_q * by_data,
    ]
    columns = [*shared]
    for group in range(1, places.num_groups):
        columns += [np.where(places.group == group, column, 0.0) for column in own]
    if not places.acts_together:
        del columns[_B_M]
    found: np.ndarray = np.column_stack(columns) / _total(terms)[:, None]
    return found


def least(places: Places, log_loss: np.ndarray, *, start: np.ndarray | None = None) -> np.ndarray:
    """The coefficients of least Huber loss, from one start or the best of several."""
    from scipy.optimize import least_squares

    low, high = (np.append(a, np.tile(b, places.num_groups - 1)) for a, b in (_LOW, _HIGH))
    starts = _starts(np.exp(log_loss), places.num_groups - 1)
    if not places.acts_together:
        low, high, *starts = (np.delete(values, _B_M) for values in (low, high, *starts))
    best = None
    for first in [start] if start is not None else starts:
        solved = least_squares(
            lambda theta: expected(places, theta) - log_loss,
            np.clip(first, low + 1e-6, high - 1e-6),
            jac=lambda theta: jacobian(places, theta),
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
                own = np.tile([0.0, b_s, 0.0], num_algorithms)
                starts.append(np.concatenate([shared, [0.0], own]))
    return starts


def laws(theta: np.ndarray, places: Places) -> list[SparsityLaw]:
    """The law of each group, the dense one first."""
    theta = _whole(places, theta)
    scale, b_n, a_d, b_d, floor = map(float, np.exp(theta[:_B_M]))
    found: list[SparsityLaw] = []
    for logit, b_s, b_x in [_NONE, *theta[_SHARED:].reshape(-1, _OWN)]:
        share = float(1 / (1 + np.exp(-logit)))
        parts = (
            (share * scale, float(b_s), (1 - share) * scale) if len(found) else (0.0, 0.0, scale)
        )
        units = places.unit_n, places.unit_d
        found.append(
            SparsityLaw(*parts, b_n, a_d, b_d, floor, *units, float(b_x), float(theta[_B_M]))
        )
    return found


def at_bounds(law: SparsityLaw) -> list[str]:
    """Names of the coefficients of a law that stand at an end of their range."""
    shared = [np.log(law.b_n), np.log(law.a_d), np.log(law.b_d), np.log(law.floor), law.b_m]
    values = {**dict(zip(("b_n", "a_d", "b_d", "floor", "b_m"), shared, strict=True)),
              "b_s": law.b_s, "b_x": law.b_x}  # fmt: skip
    lowest, highest = (np.concatenate([shared[1:], own[1:]]) for shared, own in (_LOW, _HIGH))
    return [
        key
        for (key, value), low, high in zip(values.items(), lowest, highest, strict=True)
        if not low + NEAR < value < high - NEAR
    ]


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
