"""Time to the final loss of the slowest learner of the same model and data: measured seconds of
training per machine, and simulated seconds on a CS-2 at peak rate. Speed-ups are against the first
row of the same clock.
"""

import pandas as pd

from experiments.analysis import costs
from experiments.analysis.figures import time_to_loss
from experiments.specs.planned import PlannedStudy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, clock, method and sparsity."""
    table = time_to_loss.times(time_to_loss.data(records, curves, study))
    shares = costs.core_share(records)
    marks = [costs.beside_others(shares, runs.split()) for runs in table["runs"]]
    table.insert(table.columns.get_loc("runs"), costs.BESIDE, marks)
    return table.assign(**{costs.BESIDE: table[costs.BESIDE].where(table["clock"] == "measured")})
