"""Wall time of one training, means over the seeds of one machine. Seconds of different machines do
not compare. "Beside other work": the run computed in less than 90% of the seconds of its steps.
"""

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
