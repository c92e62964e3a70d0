"""Test accuracy against executed training FLOPs: small points are seeds, large ones their mean, the
number beside a point its sparsity in percent, where there is room. A is the dense model. Sparsity
without widening (arrow to B) saves FLOPs; where there are such models, Sparse-IFT (arrow to C)
spends them on a larger, sparse model, and D is a larger dense one. B, C and D stand at the mean
of all their variants that train on as many images as A, C of those within 15% of A's FLOPs, since
picking one by its test accuracy would favour it. Models of other lengths or FLOPs are points of
their own, and named so. Settings that were chosen after the study had run are left out. Compare
Figures 1 and 4 of the Sparse-IFT blog."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.figures import _by_flops
from experiments.specs.planned import PlannedStudy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Test accuracy and executed FLOPs of every run."""
    return _by_flops.scores(records, study, "accuracy", "test")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per dataset."""
    rows = data(records, curves, study)
    rows = rows.assign(value=100 * rows["value"])
    empty = "No dense model has a test accuracy yet."
    return _by_flops.draw(rows, study, label="top-1 test accuracy (%)", empty=empty)


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Where the arrows lead."""
    rows = data(records, curves, study)
    return _by_flops.caption(rows, study, unit="%", scale=100)
