"""How often the ledger would speak falsely: its own tests and policy on simulated runs that differ
by chance only. "rate" is the share of ledgers in which any claim of the family gets a verdict, with
its 95% interval; at most 5% of the primary ones should. In "no effect" every comparison of a claim
is at the boundary of what it says, in "one link" only one is and the others hold by far."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per family, case and boundary."""
    return tidy.computed(study.scale, "false_verdicts", "rates")
