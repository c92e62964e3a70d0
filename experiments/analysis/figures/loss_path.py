"""Loss on the straight line between the static and the pruned solution of a seed, from the weights
of the one to those of the other; statistics of norms are taken anew at each of its 21 points. Thin
lines are seeds, the thick one their mean. A barrier is a loss above that of both ends (Evci et al.
2020, section 4.4 and Figure 6)."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COMPUTATION, METHOD = "loss_path", "static90"
TITLES = {"train": "Training images", "validation": "Validation images"}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Losses in nats per image by pair of runs and share of the way."""
    return tidy.computed(study.scale, COMPUTATION, "path")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per split."""
    path, color = data(records, curves, study), Methods(study)[METHOD].color
    figure, axes = style.panels(len(TITLES) if len(path) else 1)
    if path.empty:
        style.say_empty(axes[0], "No pair of models has been compared yet.")
        return figure
    for panel, (split, title) in zip(axes, TITLES.items(), strict=False):
        for _, seed in path.groupby("seed"):
            panel.plot(seed["share"], seed[split], color=color, linewidth=0.8, alpha=0.4)
        mean = path.groupby("share")[split].mean()
        panel.plot(mean.index, mean, color=color, linewidth=2)
        panel.set_title(title)
        panel.set_xlabel("share of the way: static (0) to pruned (1)")
        panel.set_ylabel("loss (nats per image)")
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """How high the barrier is."""
    path = data(records, curves, study)
    if path.empty:
        return ""
    heights = []
    for _, seed in path.sort_values("share").groupby("seed"):
        losses = seed["train"].to_numpy()
        heights.append(losses.max() - max(losses[0], losses[-1]))
    mean, least = sum(heights) / len(heights), min(heights)
    return (
        f"The highest training loss is {mean:.2f} nats above the higher end in the mean of "
        f"{len(heights)} seeds, {least:.2f} at least."
    )
