"""Wall time of one training as it ran, means over the seeds that one machine trained, with the
steps that a run shares with another one whose state it continues. Small layers are dense under
their masks and runs share a machine, so it does not follow the executed FLOPs. "beside other work"
says yes where a run of one thread computed in less than 90% of the seconds of its steps, since
other work had its core: alone it takes less time. Each row is of one machine (processor, threads,
library versions and kernels, by key); seconds of different machines say nothing beside each other,
and without a key there are none."""

import pandas as pd

from experiments.analysis import costs
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy
from experiments.store.machine import is_known

COLUMNS = ["model", "dataset", "method", "sparsity", "machine", "processor", "runs timed"]
COLUMNS += ["wall time (s)", costs.BESIDE, "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method, sparsity and machine; no time where none is known."""
    times, shares = tidy.select(records, "wall_s"), costs.core_share(records)
    keys = ["model", "dataset", "method", "sparsity", "machine", "cpu"]
    rows = []
    for place, own in times.groupby(keys, sort=False, dropna=False):
        row = dict(zip(COLUMNS, place, strict=False))
        row |= {"runs timed": own["run"].nunique(), "runs": " ".join(own["run"])}
        if is_known(row["machine"]):
            row["wall time (s)"] = own["value"].mean()
            row[costs.BESIDE] = costs.beside_others(shares, own["run"])
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)
