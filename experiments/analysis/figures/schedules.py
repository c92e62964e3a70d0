"""Sparsity, drop fraction and learning rate as the runs followed them, one seed per method, at the
lowest sparsity of the study's first model and dataset; where lines coincide, the thicker one lies
beneath. Compare Figure 7 of the source: constant sparsity for RigL, a cubic ramp for GraNet."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import records as tidy
from experiments.analysis import selection, style

AXES = ("tokens", "steps", "flops")
TITLES = {
    "sparsity": "Sparsity of the masked weights",
    "drop_fraction": "Drop fraction",
    "learning_rate": "Learning rate",
}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """Schedules of the first seed of each method at the lowest sparsity."""
    rows = tidy.label_curves(curves[curves["metric"].isin(list(TITLES))], records)
    rows = rows[rows["kind"] == "train"]
    if rows.empty:
        return rows
    _, rows = selection.by_level(tidy.in_cell(rows, tidy.cells(records)[0]))[0]
    return rows[rows["seed"] == rows.groupby("method")["seed"].transform("min")]


def draw(
    records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any], *, x: str = "tokens"
) -> Figure:
    """One panel per schedule."""
    coordinate, name = style.AXES[x]
    rows = data(records, curves, study)
    figure, axes = style.panels(len(TITLES), height=2.2)
    for panel, (metric, title) in zip(axes, TITLES.items(), strict=True):
        labels = []
        chosen = rows[rows["metric"] == metric]
        for (method, sparsity), group in chosen.groupby(["method", "sparsity"], sort=False):
            look, width = style.method_style(method), style.nested_width(len(labels))
            panel.plot(group[coordinate], group["value"], color=look.color, lw=width)
            text = style.treatment_name(method, sparsity)
            labels.append((group["value"].iloc[-1], text, look.color))
        if not labels:
            style.say_empty(panel, f"No run has logged its {title.lower()}.")
            continue
        panel.set_ylim(bottom=0)
        style.label_ends(panel, labels)
        panel.set_title(title)
        panel.set_xlabel(name)
    return figure
