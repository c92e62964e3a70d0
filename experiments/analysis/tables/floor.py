"""Validation loss above a provable floor, in nats per token: on text drawn from a grammar whose
exact probabilities are known, no model can on average predict better than the floor. Means over
seeds; only datasets with a known floor are listed."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "floor", "loss", "excess", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset with a floor, method and sparsity."""
    own = records[(records["task"] == "training") & (records["split"] == "validation")]
    own = own[own["run"].isin(own[own["metric"] == "floor_loss"]["run"])]
    rows = []
    for workload in tidy.workloads(own):
        for method, sparsity in tidy.treatments(tidy.in_workload(own, workload)):
            chosen = tidy.in_workload(own, workload)
            chosen = chosen[(chosen["method"] == method) & (chosen["sparsity"] == sparsity)]
            means = chosen.groupby("metric")["value"].mean()
            runs = chosen["run"].drop_duplicates()
            values = (means["floor_loss"], means["loss"], means["excess_loss"])
            row = (*workload, method, sparsity, len(runs), *values, " ".join(runs))
            rows.append(dict(zip(COLUMNS, row, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)
