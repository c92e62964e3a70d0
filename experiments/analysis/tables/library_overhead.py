"""CPU time of steps under a method over that of dense steps of the same network, measured on one
thread in turn with them: mean and 95% interval over rounds, each of which holds one mask update, on
one machine."""

import pandas as pd

from experiments.analysis import stats
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per machine and method."""
    rows = tidy.with_machine(tidy.computed(study.scale, "library", "overhead"))
    found = []
    for (machine, name), own in rows.groupby(["machine", "method"], sort=False):
        mean, low, high = stats.t_interval(own["ratio"])
        row = {"method": name, "over dense": mean, "low": low, "high": high, "rounds": len(own)}
        found.append({**row, "machine": machine})
    return pd.DataFrame(found)
