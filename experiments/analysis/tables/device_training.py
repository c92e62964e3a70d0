"""Simulated at peak rate, so a lower bound: a Llama of 1.3B on 112 billion tokens with four CS-2,
after "Sparsity Made Easy". The source publishes neither batch size (512 sequences here) nor time.
"""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method."""
    rows = tidy.computed(study.scale, "device", "training")
    columns = {
        "model": "model",
        "method": "method",
        "sparsity": "sparsity",
        "batch_size": "sequences",
        "num_steps": "steps",
        "step_s": "seconds per step",
        "days": "days",
        "energy_kwh": "kWh",
        "bound_by": "bound by",
        "label": "label",
    }
    return rows[list(columns)].rename(columns=columns)
