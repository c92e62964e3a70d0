"""Validation loss against copying from the context: nats per token that a passage costs less when
it is read again. Each point is one run; lower is better. Titles give the tokens of training."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Loss, as ``value``, and copying of each run that has both."""
    copying = tidy.select(records, "copying", split="validation").set_index("run")["value"]
    losses = tidy.by_masks(
        tidy.select(records, "loss", split="validation", task="training"), curves
    )
    return losses.assign(copying=losses["run"].map(copying)).dropna(subset=["copying"])


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per workload."""
    rows, looks = data(records, curves, study), Methods(study)
    shown = tidy.workloads(rows)
    figure, axes = style.panels(len(shown), height=2.6)
    if not shown:
        style.say_empty(axes[0], "No finished run was scored for copying.")
    for panel, workload in zip(axes, shown, strict=False):
        runs = tidy.in_workload(rows, workload)
        groups = runs.groupby(["method", "sparsity"])
        names = [looks[method].name for (method, _), _ in groups]
        for at, ((method, sparsity), own) in enumerate(groups):
            look = looks[method]
            color = style.shade(look.color, names[:at].count(look.name), names.count(look.name))
            label, x, y = looks.treatment(method, sparsity), own["copying"], own["value"]
            panel.plot(x, y, ls="", color=color, marker=look.marker, label=label)
        panel.set_title(style.title(workload, style.tokens(runs, study)))
        panel.set_xlabel("copying, nats per token")
        panel.set_ylabel("validation loss, nats per token")
        panel.legend(fontsize=7)
    return figure
