"""Test accuracy in percent (higher is better): mean over seeds with its 95% interval, and the
difference to dense in points, whose interval follows from the spread of these runs alone."""

import pandas as pd

from experiments.analysis.tables import _means
from experiments.findings.claim import Outcome
from experiments.specs.schema import PlannedStudy

OUTCOME = Outcome(
    metric="accuracy", split="test", unit="points", better="higher", times=100, noun=""
)


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, epochs and method."""
    return _means.table(_means.rows(records, study, OUTCOME), "accuracy, %", curves)
