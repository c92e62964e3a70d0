"""Validation perplexity against executed training FLOPs: small points are seeds, large ones their
mean, the number beside a point its sparsity in percent, where there is room. A is the dense model.
Sparse-IFT (arrow to C) spends its FLOPs on a larger, sparse model; D, where there is one, is a
larger dense model. Letters stand at the mean of all their variants that train on as many tokens as
A, C of those within 15% of A's FLOPs. Models of other lengths or FLOPs are points of their own, and
named so. Lower is better. Compare Figure 4 of the Sparse-IFT blog."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.figures import _by_flops
from experiments.specs.planned import PlannedStudy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Validation perplexity and executed FLOPs of every run."""
    return _by_flops.scores(records, study, "perplexity", "validation")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per dataset."""
    return _by_flops.draw(
        data(records, curves, study),
        study,
        label="validation perplexity per token",
        empty="No dense model has a validation perplexity yet.",
    )


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Where the arrows lead."""
    return _by_flops.caption(data(records, curves, study), study, unit="")
