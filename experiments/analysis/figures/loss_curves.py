"""Training and validation loss, one panel per sparsity with the dense model in each. Thin lines
are seeds, thick lines their mean; the bar at the end is its 95% t interval. Lower is better."""

import math
from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import select as selection
from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

CURVES = True
TITLES = {"train": "Training", "validation": "Validation"}
#: Methods that one panel can show, and that each of several shows at the most.
MOST, EACH = 8, 6
TREATMENT = ["method", "sparsity"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Loss of every run at every logged step."""
    return tidy.label_curves(curves[curves["metric"] == "loss"], records)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model, dataset and split."""
    losses, looks = data(records, curves, study), Methods(study)
    shown = []
    for place, workload in enumerate(tidy.workloads(records)):
        own = tidy.in_workload(losses, workload)
        for kind in ("validation",) if place else ("train", "validation"):
            for level, rows in selection.by_level(own[own["kind"] == kind]):
                title = f"{TITLES[kind]} loss · {workload}"
                title += f" · {100 * level:g}%" if level else ""
                if rows.groupby(TREATMENT).ngroups <= MOST:
                    shown.append((title, rows, rows))
                elif kind == "validation":
                    parts = list(_parts(rows))
                    shown += [
                        (f"{title} · {number} of {len(parts)}", part, rows)
                        for number, part in enumerate(parts, 1)
                    ]
    figure, axes = style.panels(len(shown))
    if not shown:
        style.say_empty(axes[0], "No run has finished yet.")
    for panel, (title, rows, everything) in zip(axes, shown, strict=False):
        _draw_panel(panel, rows, everything, looks)
        panel.set_title(title)
        panel.set_ylabel(style.loss_unit(everything, study))
    return figure


def _parts(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Split a panel's rows by method into equal parts, those that end lowest first."""
    ends = rows.sort_values("step").groupby("run").tail(1)
    order = list(ends.groupby(TREATMENT)["value"].mean().sort_values(kind="stable").index)
    size = math.ceil(len(order) / math.ceil(len(order) / EACH))
    treatments = pd.MultiIndex.from_frame(rows[TREATMENT])
    for first in range(0, len(order), size):
        yield rows[treatments.isin(order[first : first + size])]


def _draw_panel(axes: Axes, rows: pd.DataFrame, everything: pd.DataFrame, looks: Methods) -> None:
    coordinate, name = style.progress(rows)
    others = everything[~everything["run"].isin(set(rows["run"]))]
    for _, group in others.groupby(TREATMENT):
        mean = style.mean_by(group, coordinate)
        axes.plot(mean[coordinate], mean["value"], color="0.8", lw=1, marker="", zorder=1)
    labels = []
    for (method, sparsity), group in rows.groupby(TREATMENT, sort=False):
        look = looks[method]
        style.seed_lines(axes, group, coordinate, look.color)
        mean = style.mean_by(group, coordinate)
        marks = len(mean) if len(mean) <= 20 else 8
        style.method_line(axes, mean[coordinate], mean["value"], look, marks=marks)
        last = group.sort_values("step").groupby("run").tail(1)
        style.interval_bars(axes, last, coordinate, "method", look.color)
        labels.append((last["value"].mean(), looks.treatment(method, sparsity), look.color))
    if not labels:
        style.say_empty(axes, "No run has logged this loss.")
        return
    # The first steps fall from the loss of a uniform guess and would flatten everything else.
    late = everything[everything["step"] > 0.15 * everything["step"].max()]
    upper, lower = late["value"].max(), everything["value"].min()
    margin = 0.05 * (upper - lower or 1.0)
    axes.set_ylim(lower - margin, upper + margin)
    style.label_ends(axes, labels)
    style.progress_axis(axes, name)
