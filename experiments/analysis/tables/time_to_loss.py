"""Time to the loss that the slowest learner of the same model and data reaches at its end: seconds
of training as one machine measured them, and simulated seconds of computing on a CS-2 (peak rate,
no streaming). Linear between validations; means over seeds. Speed-ups are against the first row of
the same model, data and clock; a machine measures only its own runs, and runs whose machine was not
recorded are simulated only. "beside other work" is as in the table of wall times."""

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
