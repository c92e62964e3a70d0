"""Sparsity, learning rate and drop fraction by step, one seed per method, at the lowest sparsity
of the study's main workload. Where lines coincide, the thicker one lies beneath.
Compare Figure 7 of the source."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.figures import churn_itop
from experiments.analysis.methods import Methods
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

TITLES = {
    "sparsity": "Sparsity of the masked weights",
    "drop_fraction": "Drop fraction",
    "learning_rate": "Learning rate",
}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Schedules of the first seed of each method at the lowest sparsity."""
    rows = tidy.label_curves(curves, records, TITLES)
    rows = rows[rows["kind"] == "train"]
    _, rows = tidy.by_level(tidy.main_training(rows, study))[0]
    return rows[rows["seed"] == rows.groupby("method")["seed"].transform("min")]


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per schedule."""
    rows, looks = data(records, curves, study), Methods(study)
    figure, axes = style.panels(len(TITLES), height=2.2)
    for panel, (metric, title) in zip(axes, TITLES.items(), strict=True):
        churn_itop.draw_panel(panel, rows[rows["metric"] == metric], looks, title)
    return figure
