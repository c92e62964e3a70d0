"""The learning rate of lowest validation perplexity (of images: loss) for each method and sparsity,
among trials of equal length, with its value. A best rate at the end of the tried range is only a
bound.
"""

import pandas as pd

from experiments.analysis.figures import tuning
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["model", "dataset", "steps", "method", "sparsity", "best rate", "at an end", "best"]
COLUMNS += ["next lower", "next higher", "rates", "runs"]
#: Columns within which trials are compared: one setting of a method at one sparsity and length.
KEYS = ["model", "dataset", "steps", "method", "sparsity"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method and sparsity with several rates."""
    rows = []
    for key, own in tuning.data(records, curves, study).groupby(KEYS, sort=True):
        means = own.groupby("learning rate")["value"].mean()
        if len(means) < 2:
            continue
        at = int(means.argmin())
        values = {
            "best rate": means.index[at],
            "at an end": at in (0, len(means) - 1),
            "best": means.iloc[at],
            "next lower": means.iloc[at - 1] if at else float("nan"),
            "next higher": means.iloc[at + 1] if at + 1 < len(means) else float("nan"),
            "rates": len(means),
            "runs": " ".join(own["run"]),
        }
        rows.append({**dict(zip(KEYS, key, strict=True)), **values})
    return pd.DataFrame(rows, columns=COLUMNS)
