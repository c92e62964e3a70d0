"""Measured on one thread of a CPU: the training step of the model that most runs train, at their
batch and with their optimizer, beside its Amdahl bound, which speeds up the linear layers of the
blocks alone.
"""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = {
    "model": "model",
    "batch_size": "sequences",
    "context": "context",
    "sparsity": "sparsity",
    "step_s": "ms per step",
    "outside_s": "ms outside the layers",
    "bound_s": "ms at the bound",
    "over_bound": "step / bound",
    "speedup": "speed-up",
    "machine": "machine",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per sparsity, the dense step first."""
    rows = tidy.computed(study.scale, "device", "run_step")
    times = [name for name in COLUMNS if name.endswith("_s")]
    rows = tidy.with_machine(rows)
    return rows.assign(**{name: 1e3 * rows[name] for name in times})[list(COLUMNS)].rename(
        columns=COLUMNS
    )
