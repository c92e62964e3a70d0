"""CPU time of steps under a method over that of dense steps of the same network, measured on one
thread in turn with them: mean and 95% interval over rounds, each of which holds one mask update."""

from typing import Any

import pandas as pd

from experiments.analysis import stats
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per method."""
    rows = tidy.computed(study["scale"], "library", "overhead")
    found = []
    for name, own in rows.groupby("method", sort=False):
        mean, low, high = stats.t_interval(own["ratio"])
        found.append(
            {"method": name, "over dense": mean, "low": low, "high": high, "rounds": len(own)}
        )
    return pd.DataFrame(found)
