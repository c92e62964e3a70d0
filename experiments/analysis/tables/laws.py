"""Laws of loss (bits per byte, or test error): (a_s (1 - S)^b_s + c_s) N^-b_n + (a_d / (D (1 -
S)^b_x))^b_d + floor, N non-zero weights of the blocks and D tokens or images, each over its unit;
all methods share the coefficients that a dense model has. Worth is how many times its non-zero
weights a dense model of equal loss has, at 75% sparsity, the middle of the sizes and the longest
fitted budget, with a 95% interval; empty where no dense model is that good. Errors are root mean
squares of relative differences to cell means: in the fit; at the longest budget of the largest
fitted size, by a law fitted without it; and on held-out cells. Plain is a law linear in
logarithms."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import effects, law_cells, scaling
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["method", "runs", "waits for", "a_s", "b_s", "c_s", "b_n", "a_d", "b_d", "b_x", "floor",
           "worth of 75%", "low", "high", "seed noise (%)", "error in the fit (%)",
           "error left out (%)", "plain, left out (%)", "error held out (%)",
           "plain, held out (%)"]  # fmt: skip
COEFFICIENTS = ("a_s", "b_s", "c_s", "b_n", "a_d", "b_d", "b_x", "floor")
SPARSITY = 0.75


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method."""
    rows, planned = law_cells.finished(records, study), law_cells.planned(study)
    laws = scaling.fit_all(rows)
    fitted = rows[~rows["held_out"].astype(bool)]
    last = (fitted["weights"] == fitted["weights"].max()) & (fitted["data"] == fitted["data"].max())
    left_out = fitted[last]
    without = scaling.fit_all(fitted[~last], draws=0)
    made = []
    for name in dict.fromkeys(planned["algorithm"]):
        own = rows[rows["algorithm"] == name]
        row: dict[str, Any] = {"method": name, "runs": len(own)}
        row["waits for"] = law_cells.waits_for(fitted, name)
        if name in laws:
            row |= _row(rows, fitted, laws[name])
        if name in without:
            left = law_cells.of_algorithm(left_out, name)
            row["error left out (%)"] = _error(without[name].law, left)
            row["plain, left out (%)"] = _error(scaling.fit_plain(fitted[~last], name), left)
        made.append(row)
    return pd.DataFrame(made, columns=COLUMNS)


def _row(rows: pd.DataFrame, fitted: pd.DataFrame, found: scaling.Fitted) -> dict[str, Any]:
    law, name = found.law, found.algorithm
    row = {
        key: getattr(law, key) for key in ("a_s", "b_s", "c_s", "b_n", "a_d", "b_d", "b_x", "floor")
    }
    row["seed noise (%)"] = 100 * found.seed_sd
    if name != law_cells.DENSE:
        place = SPARSITY, found.middle(SPARSITY), float(found.rows["data"].max())
        draws = np.array([one.worth(*place) for one in found.draws])
        row["low"], row["high"] = effects.interval(draws)
        row["worth of 75%"] = law.worth(*place)
    own = law_cells.of_algorithm(rows, name)
    row["error in the fit (%)"] = _error(law, own[~own["held_out"].astype(bool)])
    held_out = own[own["held_out"].astype(bool)]
    row["error held out (%)"] = _error(law, held_out)
    row["plain, held out (%)"] = _error(scaling.fit_plain(fitted, name), held_out)
    return row


def _error(law: Any, rows: pd.DataFrame) -> float:
    """Root mean square of relative errors over cells, in percent; NaN without cells."""
    means = law_cells.cell_means(rows)
    if means.empty:
        return float("nan")
    s, n, d = (means[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    return float(100 * np.sqrt(np.mean((law(s, n, d) / means["loss"] - 1) ** 2)))
