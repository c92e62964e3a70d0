"""Validation perplexity after training, per token of the model's own vocabulary (lower is better):
mean over seeds with its 95% interval, and the difference to dense (continued, where others are),
whose interval follows from the spread of these runs alone."""

import pandas as pd

from experiments.analysis.tables import _means
from experiments.findings.claim import Outcome
from experiments.specs.schema import PlannedStudy

OUTCOME = Outcome(
    metric="perplexity", split="validation", unit="perplexity", better="lower", noun=""
)


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, budget and method."""
    return _means.table(_means.rows(records, study, OUTCOME), "perplexity", curves)
