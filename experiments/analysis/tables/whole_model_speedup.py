"""Simulated: whole models at a context of 2,048 on one CS-2, if computing alone took time and with
weights streamed for every micro-batch. SPDF's ratio of FLOPs is a bound, no measurement.
"""

import pandas as pd

from experiments import published
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

MODELS = {"GPT-2 Small": "GPT-2 Small (125M)", "GPT-3 XL": "GPT-3 XL (1.3B)"}
METRIC = "theoretical speed-up vs dense"


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model and sparsity."""
    rows = tidy.computed(study.scale, "device", "whole_model")
    return pd.DataFrame(
        {
            "model": rows["model"],
            "sparsity": rows["sparsity"],
            "ratio of FLOPs": rows["flops_ratio"],
            "speed-up, computing alone (simulated)": rows["compute_bound"],
            "speed-up, with streaming (simulated)": rows["streaming"],
            "ratio of FLOPs (published)": [
                _published(model, sparsity)
                for model, sparsity in zip(rows["model"], rows["sparsity"], strict=True)
            ],
        }
    )


def _published(model: str, sparsity: float) -> str:
    """The range over SPDF's fine-tuning tasks."""
    rows = published.results()
    rows = rows[(rows["model"] == MODELS[model]) & (rows["metric"] == METRIC)]
    values = rows[pd.to_numeric(rows["sparsity"], errors="coerce") == sparsity]["value"]
    lowest, highest = min(values), max(values)
    return lowest if lowest == highest else f"{lowest} to {highest}"
