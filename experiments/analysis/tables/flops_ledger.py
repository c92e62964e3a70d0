"""FLOPs of one training step as the device's ledger counts them while it runs, beside the closed
form: they must be equal to the last digit."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model and sparsity."""
    return tidy.computed(study.scale, "flops", "ledger")
