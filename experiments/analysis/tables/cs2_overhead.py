"""The timing model of one product, T(s) / T(0) = (1 - s) + c s, with c fitted up to a five-fold
reduction; points beyond it are predicted. Published: 12k x 12k on a CS-2, digitised from SPDF's
supplement.
"""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per published sparsity."""
    rows = tidy.computed(study.scale, "device", "overhead")
    return pd.DataFrame(
        {
            "1 / (1 - sparsity)": (1 / (1 - rows["sparsity"])).round(),
            "use": rows["fitted"].map({True: "fitted", False: "predicted"}),
            "speed-up (simulated)": rows["simulated"],
            "error of the simulation": [f"{100 * error:+.1f}%" for error in rows["relative_error"]],
            "speed-up (published)": rows["published"],
        }
    )
