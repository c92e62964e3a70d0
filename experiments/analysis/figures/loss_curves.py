"""Validation loss on the longest training that most methods share, by sparsity, with the dense
model. Thin lines are seeds, thick ones their mean; the bar at the end is its 95% t interval. Lower
is better."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.findings.estimate import mean_interval
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

TREATMENT = ["method", "sparsity"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Validation loss of the main workload's runs at every logged step."""
    rows = tidy.label_curves(curves, records, ["loss"])
    return tidy.main_training(rows[rows["kind"] == "validation"], study)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per sparsity."""
    losses, looks = data(records, curves, study), Methods(study)
    shown = tidy.by_level(losses, most=3) if len(losses) else []
    figure, axes = style.panels(len(shown))
    if not shown:
        style.say_empty(axes[0], "No run has finished yet.")
    for panel, (level, rows) in zip(axes, shown, strict=False):
        draw_panel(panel, rows, looks)
        title = f"{tidy.workloads(rows)[0]}"
        panel.set_title(f"{title} · {100 * level:g}%" if level else title)
        panel.set_ylabel(f"validation loss, {style.loss_unit(rows)}")
    return figure


def draw_panel(axes: Axes, rows: pd.DataFrame, looks: Methods) -> None:
    """Losses of each treatment: seeds, their mean, and the interval at the end."""
    coordinate, name = style.progress(rows)
    labels = []
    for (method, sparsity), group in rows.groupby(TREATMENT, sort=False):
        look = looks[method]
        style.seed_lines(axes, group, coordinate, look.color)
        mean = style.mean_by(group, coordinate)
        marks = len(mean) if len(mean) <= 20 else 8
        style.method_line(axes, mean[coordinate], mean["value"], look, marks=marks)
        last = group.sort_values("step").groupby("run").tail(1)
        middle, low, high = mean_interval(last["value"])
        if low == low:
            ends, place = [max(low, 0.0), high], last[coordinate].mean()
            axes.plot([place, place], ends, color=look.color, lw=1.4)
        labels.append((middle, looks.treatment(method, sparsity), look))
    # The first steps fall from the loss of a uniform guess and would flatten everything else.
    late = rows[rows["step"] > 0.15 * rows["step"].max()]
    upper, lower = late["value"].quantile(0.95), rows["value"].min()
    margin = 0.05 * (upper - lower or 1.0)
    axes.set_ylim(lower - margin, upper + margin)
    style.label_ends(axes, labels)
    style.progress_axis(axes, name)
