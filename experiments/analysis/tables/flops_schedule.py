"""RigL's mean FLOPs per step on ResNet-50 at 90% (ERK): the mean over the steps of a schedule, one
update in so many steps and one more, beside the closed form of the paper."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per update interval."""
    return tidy.computed(study.scale, "flops", "schedule")
