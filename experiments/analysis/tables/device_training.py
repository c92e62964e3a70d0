"""Simulated: training a Llama of 1.3B on 112 billion tokens with four CS-2, after the recipe of
"Sparsity Made Easy", where sparse runs halve the batch and double the steps (its batch size is not
published: 512 sequences here). At peak rate, so a lower bound; the source publishes no time."""

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
