"""What the sources state about the library, case by case: "expected" follows from the source's
words or formula, "found" is read off masks, weights and optimizer states of sparse_lib."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per case."""
    return tidy.computed(study.scale, "library", "properties")
