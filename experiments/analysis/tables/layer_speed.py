"""Speed-up over dense. Measured: a layer's training step on one CPU thread against its fastest
dense float32 step. Published: one product on a CS-2, digitised from SPDF's supplement, Figure 1.
"""

import pandas as pd

from experiments.analysis.figures import device_speedup
from experiments.specs.schema import PlannedStudy

SERIES = {
    "measured": "this CPU, measured",
    "published": "CS-2, published",
    "simulated": "CS-2, simulated",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per sparsity of `device_speedup.TICKS`."""
    points = device_speedup.data(records, curves, study)
    points = points[points["sparsity"].round(6).isin(device_speedup.TICKS)]
    table = points.pivot(index="sparsity", columns="series", values="speedup")
    return table.reindex(columns=list(SERIES)).rename(columns=SERIES).reset_index()
