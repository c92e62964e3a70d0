"""Wall time of one training as it ran, means over the seeds that one machine trained. Small layers
are dense under their masks and runs share a machine, so it does not follow the executed FLOPs.
Each row is of one machine (processor, threads, library versions and kernels, by key); seconds of
different machines say nothing beside each other, and without a key there are none."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy
from experiments.store.machine import is_known

COLUMNS = ["model", "dataset", "method", "sparsity", "machine", "processor", "runs timed"]
COLUMNS += ["wall time (s)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method, sparsity and machine; no time where none is known."""
    times = tidy.select(records, "wall_s")
    keys = ["model", "dataset", "method", "sparsity", "machine", "cpu"]
    rows = []
    for place, own in times.groupby(keys, sort=False, dropna=False):
        row = dict(zip(COLUMNS, place, strict=False))
        row |= {"runs timed": own["run"].nunique(), "runs": " ".join(own["run"])}
        row["wall time (s)"] = own["value"].mean() if is_known(row["machine"]) else None
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)
