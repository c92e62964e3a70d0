"""Measured on one thread of a CPU: the training step of the model that most runs train, at their
batch and with their optimizer, beside Amdahl's estimate, which speeds the blocks' linear
layers by what one layer gains.
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
    "bound_s": "ms by Amdahl",
    "over_bound": "step / Amdahl",
    "speedup": "speed-up",
    "machine": "machine",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per sparsity, the dense step first."""
    rows = tidy.computed(study.scale, "device", "run_step")
    times = [name for name in COLUMNS if name.endswith("_s")]
    return rows.assign(**{name: 1e3 * rows[name] for name in times})[list(COLUMNS)].rename(
        columns=COLUMNS
    )
