"""Losses of the held-out cells: predicted by laws fitted without them and
registered before they were trained (date and hash in experiments/published/predictions), and
measured, as the mean over seeds. Inside says whether what was measured lies in the 95% band, once
all seeds are there that the band is of. By a line: without a law, by a line of log loss over log
data through the longest three fitted budgets of the same method and model, where there are any."""

import pandas as pd

from experiments.analysis import law_cells, predictions
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["method", "model", "sparsity", "data", "registered", "predicted", "low", "high",
           "measured", "seeds", "error (%)", "by a line", "error of the line (%)",
           "seed spread (%)", "inside", "runs"]  # fmt: skip
NOT_YET = "not registered"
WAITS = "waits for seeds"


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per held-out cell."""
    planned, rows = law_cells.planned(study), law_cells.finished(records, study)
    held_out = planned[planned["held_out"].astype(bool)]
    found = predictions.registered(study.name, study.scale)
    said = {} if found is None else {loss["method"]: loss for loss in found["losses"]}
    made = []
    for cell, own in held_out.groupby(["method", "model", "sparsity", "data"], sort=False):
        done = rows[rows["run"].isin(own["run"])]
        loss = said.get(cell[0], {})
        row = dict(zip(COLUMNS, cell, strict=False))
        row["registered"] = loss.get("date", NOT_YET)
        row |= {key: loss.get(key) for key in ("predicted", "low", "high")}
        row |= {"by a line": loss.get("line"), "inside": WAITS}
        if len(done):
            mean = float(done["loss"].mean())
            row |= {"measured": mean, "seeds": len(done), "runs": " ".join(done["run"])}
            row["seed spread (%)"] = 100 * float(done["loss"].std()) / mean
            if "predicted" in loss:
                row["error (%)"] = 100 * (mean / loss["predicted"] - 1)
            if "line" in loss:
                row["error of the line (%)"] = 100 * (mean / loss["line"] - 1)
        if len(done) == len(own):
            row["inside"] = ""
            if "predicted" in loss:
                row["inside"] = "yes" if loss["low"] <= mean <= loss["high"] else "no"
        made.append(row)
    return pd.DataFrame(made, columns=COLUMNS)
