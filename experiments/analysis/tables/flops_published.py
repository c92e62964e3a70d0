"""Every published FLOP count beside ours. "Counted as published" repeats the count under the
source's convention, which the last column names. A row is met if either number is within 1% or
prints the same digits.
"""

import pandas as pd

from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

NAMES = {"published": "value (published)"}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per published number."""
    rows = tidy.computed(study.scale, "flops", "published")
    return rows.rename(columns=NAMES)
