"""Seconds of the best dense entry over those of each sparse one, to the loss at which the slower
of the two ends: above 1 the sparse one is faster. Geometric mean over the seeds that both ran with
two budgets, with its 95% t interval; the faster one's time is read between its own budgets on a
logarithmic clock, or beyond them where it says extrapolated. The ratio of processor seconds beside
it differs where others had a part of the cores. All on one machine, by key."""

import pandas as pd

from experiments.analysis import race
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["machine", "dense", "sparse", "sparsity", "seeds", "target loss", "dense / sparse time"]
COLUMNS += ["low", "high", "processor time", "time", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per sparse entry and machine."""
    table = race.verdicts(race.ends(records))
    names = {"value": "dense / sparse time", "num_seeds": "seeds", "target": "target loss"}
    names["cpu"] = "processor time"
    table = table.rename(columns=names)
    table["time"] = ["interpolated" if inside else "extrapolated" for inside in table["inside"]]
    return table[COLUMNS]
