"""Churn: share of the present weights that an update replaces. In-time over-parameterization:
share of maskable weights that have ever been present. Thin lines are seeds, thick ones their
mean. Compare Figure 3 of the blog on the sparsity library."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Method, Methods
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

TITLES = {"churn": "Churn", "itop": "In-time over-parameterization"}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Churn and exploration of the main workload's sparse runs."""
    rows = tidy.label_curves(curves, records, TITLES)
    return tidy.main_training(rows, study)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """Two panels for each of two sparsities."""
    moves, looks = data(records, curves, study), Methods(study)
    levels = [level for level, _ in tidy.by_level(moves, most=2)] if len(moves) else []
    shown = [(metric, level) for metric in TITLES for level in levels]
    figure, axes = style.panels(len(shown))
    if not shown:
        style.say_empty(axes[0], "No sparse run has logged its masks.")
    for panel, (metric, level) in zip(axes, shown, strict=False):
        rows = moves[(moves["metric"] == metric) & (moves["sparsity"] == level)]
        if draw_panel(panel, rows, looks, TITLES[metric]):
            panel.set_title(f"{TITLES[metric]} · {100 * level:g}%")
            panel.set_ylabel("fraction of weights")
    return figure


def draw_panel(panel: Axes, rows: pd.DataFrame, looks: Methods, title: str) -> bool:
    """Seeds and mean of each treatment from 0 on; returns whether there is any."""
    if rows.empty:
        style.say_empty(panel, f"No run has logged its {title.lower()}.")
        return False
    coordinate, name = style.progress(rows)
    labels: list[tuple[float, str, Method]] = []
    for (method, sparsity), group in rows.groupby(["method", "sparsity"], sort=False):
        look, width = looks[method], max(1.0, 2.6 - 0.4 * len(labels))  # earlier lines stay visible
        style.seed_lines(panel, group, coordinate, look.color)
        mean = style.mean_by(group, coordinate)
        style.method_line(panel, mean[coordinate], mean["value"], look, lw=width)
        text = looks.treatment(method, sparsity)
        labels.append((mean["value"].iloc[-1], text, look))
    panel.set_ylim(bottom=0)
    style.label_ends(panel, labels)
    panel.set_title(title)
    style.progress_axis(panel, name)
    return True
