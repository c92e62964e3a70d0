"""Writing sentences from facts after fine-tuning: BLEU (sacrebleu, 0 to 100, higher is better),
mean over seeds with its 95% interval, and the difference to dense pre-training."""

import pandas as pd

from experiments.analysis.tables import _means
from experiments.findings.claim import Outcome
from experiments.specs.schema import PlannedStudy

OUTCOME = Outcome(metric="bleu", split="test", unit="BLEU", better="higher", noun="")


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, task, budget and method."""
    return _means.table(_means.rows(records, study, OUTCOME, dense="dense-dense"), "BLEU", curves)
