"""Laws of loss (bits per byte, or test error): (a_s (1 - S)^b_s + c_s) N^-b_n + (a_d / (D (1 -
S)^b_x))^b_d + floor, N non-zero weights of the blocks (of Sparse-Wide: stage weights of the dense
network of equal FLOPs) over unit N, and D tokens or images over unit D; all methods share the
coefficients that a dense model has. Fitted by Huber loss (bound 0.01) on log loss of all runs but
the held-out ones. Another form has D (1 - S)^b_x N^b_m: size and data act together. Bands are 95%
of 200 draws of a wild bootstrap by model, by line of a method's sparsity, and by seed, of either
form by turns, and hold the misfit: what both forms miss besides noise, in common to all methods of
a model, and of a line. At a bound says which part the data do not determine: one at the end of its
range, or a part of the size term below a ten-thousandth of it. Worth is how many times its non-zero
weights a dense model of equal loss has, at 75% sparsity, the size of the smallest fitted dense
model and the longest fitted budget; inf where no dense model is that good. Seed noise is that of a
method's runs and the dense ones. Errors are root mean squares of relative differences to the means
of a method's own cells, without the dense ones: in the fit; at the longest budget of the largest
fitted size, by a law fitted without it; and on held-out cells, by the present form, which was
chosen after these were seen, and by the laws that were registered before. Plain is a law linear in
logarithms."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import effects, law_cells, law_fit, predictions, scaling
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["method", "runs", "waits for", "a_s", "b_s", "c_s", "b_n", "a_d", "b_d", "b_x", "floor",
           "unit N", "unit D", "at a bound", "worth of 75%", "low", "high", "seed noise (%)",
           "misfit, common (%)", "misfit, own (%)", "b_m", "error in the fit (%)",
           "with b_m, in the fit (%)", "error left out (%)", "with b_m, left out (%)",
           "plain, left out (%)", "error held out (%)", "registered, held out (%)",
           "with b_m, held out (%)", "plain, held out (%)"]  # fmt: skip
COEFFICIENTS = ("a_s", "b_s", "c_s", "b_n", "a_d", "b_d", "b_x", "floor")
#: A part of the size term below this share of the other counts as none.
NO_SHARE = 1e-4
SPARSITY = 0.75


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method."""
    rows, planned = law_cells.finished(records, study), law_cells.planned(study)
    laws = scaling.fit_all(rows)
    found = predictions.registered(study.name, study.scale)
    said = {} if found is None else {loss["method"]: loss for loss in found["losses"]}
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
            row["registered, held out (%)"] = _registered_error(rows, name, said)
        if name in without:
            left = left_out[left_out["algorithm"] == name]
            row["error left out (%)"] = _error(without[name].law, left)
            row["with b_m, left out (%)"] = _error(without[name].other, left)
            row["plain, left out (%)"] = _error(law_fit.fit_plain(fitted[~last], name), left)
        made.append(row)
    return pd.DataFrame(made, columns=COLUMNS)


def _row(rows: pd.DataFrame, fitted: pd.DataFrame, found: scaling.Fitted) -> dict[str, Any]:
    law, name = found.law, found.algorithm
    row: dict[str, Any] = {key: getattr(law, key) for key in COEFFICIENTS}
    row |= {"unit N": law.unit_n, "unit D": law.unit_d}
    row["seed noise (%)"] = 100 * found.seed_sd
    row["misfit, common (%)"] = 100 * found.misfit.common
    row["misfit, own (%)"] = 100 * found.misfit.own
    at_bound = law_fit.at_bounds(law)
    if name != law_cells.DENSE:
        parts = {"a_s": law.a_s, "c_s": law.c_s}
        at_bound += [key for key, part in parts.items() if part < NO_SHARE * sum(parts.values())]
    else:
        at_bound = [key for key in at_bound if key not in ("b_s", "b_x")]  # it has no sparsity
    row["at a bound"] = ", ".join(at_bound)
    if name != law_cells.DENSE:
        row["worth of 75%"], draws = found.worth(SPARSITY, *found.place)
        row["low"], row["high"] = effects.interval(draws)
    own = rows[rows["algorithm"] == name]
    row["error in the fit (%)"] = _error(law, own[~own["held_out"].astype(bool)])
    row["with b_m, in the fit (%)"] = _error(found.other, own[~own["held_out"].astype(bool)])
    row["b_m"] = found.other.b_m
    held_out = own[own["held_out"].astype(bool)]
    row["error held out (%)"] = _error(law, held_out)
    row["with b_m, held out (%)"] = _error(found.other, held_out)
    row["plain, held out (%)"] = _error(law_fit.fit_plain(fitted, name), held_out)
    return row


def _registered_error(rows: pd.DataFrame, name: str, said: dict[str, Any]) -> float:
    """`_error` of the predictions that were registered before the held-out runs."""
    means = law_cells.cell_means(rows[rows["algorithm"] == name])
    means = means[means["held_out"].astype(bool)]
    errors = [
        said[cell["method"]]["predicted"] / cell["loss"] - 1
        for cell in means.to_dict("records")
        if "predicted" in said.get(cell["method"], {})
    ]
    return float(100 * np.sqrt(np.mean(np.square(errors)))) if errors else float("nan")


def _error(law: Any, rows: pd.DataFrame) -> float:
    """Root mean square of relative errors over cells, in percent; NaN without cells."""
    means = law_cells.cell_means(rows)
    if means.empty:
        return float("nan")
    s, n, d = (means[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    return float(100 * np.sqrt(np.mean((law(s, n, d) / means["loss"] - 1) ** 2)))
