"""Training and validation loss in nats per token: thin lines are seeds, thick lines their mean,
over the seeds that have logged the same step. Lower is better."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import records as tidy
from experiments.analysis import style

AXES = ("tokens", "steps", "flops")


def data(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """Loss of every run at every logged step."""
    return tidy.label_curves(curves[curves["metric"] == "loss"], records)


def draw(
    records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any], *, x: str = "tokens"
) -> Figure:
    """One panel per model, dataset and split."""
    losses = data(records, curves, study)
    shown = [(cell, kind) for cell in tidy.cells(records) for kind in ("train", "validation")]
    figure, axes = style.panels(len(shown))
    if not shown:
        style.say_empty(axes[0], "No run has finished yet.")
    for panel, (cell, kind) in zip(axes, shown, strict=False):
        rows = tidy.in_cell(losses, cell)
        _draw_panel(panel, rows[rows["kind"] == kind], x)
        name = "Training" if kind == "train" else "Validation"
        panel.set_title(f"{name} loss · {cell[0]} on {cell[1]}")
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, x: str) -> None:
    coordinate, name = style.AXES[x]
    labels = []
    for (method, sparsity), group in rows.groupby(["method", "sparsity"], sort=False):
        look = style.method_style(method)
        for _, run in group.groupby("run"):
            axes.plot(run[coordinate], run["value"], color=look.color, lw=0.7, alpha=0.45)
        mean = style.mean_by(group, coordinate)
        marks = {"marker": look.marker} if len(mean) <= 20 else {}
        axes.plot(mean[coordinate], mean["value"], color=look.color, **marks)
        last = group.sort_values("step").groupby("run")["value"].last().mean()
        labels.append((last, style.treatment_name(method, sparsity), look.color))
    if not labels:
        style.say_empty(axes, "No run has logged this loss.")
        return
    # The first steps fall from the loss of a uniform guess and would flatten everything else.
    upper = rows[rows["step"] > 0.15 * rows["step"].max()]["value"].max()
    lower = rows["value"].min()
    axes.set_ylim(lower - 0.05 * (upper - lower), upper + 0.05 * (upper - lower) or upper + 1)
    style.label_ends(axes, labels)
    axes.set_xlabel(name)
    axes.set_ylabel("nats per token")


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> str:
    """Name the lowest mean validation loss of each cell."""
    final = tidy.label_curves(curves[curves["metric"] == "loss"], records)
    final = final[final["kind"] == "validation"].sort_values("step").groupby("run").last()
    sentences = []
    for cell in tidy.cells(records):
        means = tidy.in_cell(final, cell).groupby(["method", "sparsity"])["value"].mean()
        if len(means):
            method, sparsity = means.idxmin()
            sentences.append(
                f"On {cell[1]} with {cell[0]}, {style.treatment_name(method, sparsity)} ends "
                f"lowest in mean validation loss ({means.min():.3f})."
            )
    return " ".join(sentences)
