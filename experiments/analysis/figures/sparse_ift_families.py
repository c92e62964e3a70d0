"""Test accuracy of each member of the Sparse-IFT family by sparsity, at about the dense model's
FLOPs: small points are seeds, large ones their mean, the bar its 95% t interval over seeds (no bar
below two seeds). The horizontal line is the dense model; members stand side by side so that they
can be told apart."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import stats, style
from experiments.analysis.methods import DENSE, Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Test accuracy of every dense and every transformed run."""
    rows = tidy.select(records, "accuracy", split="test")
    rows = rows[rows["family"].notna() | (rows["algorithm"] == DENSE)]
    return rows[["run", "model", "dataset", "method", "sparsity", "seed", "value", "family"]]


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model and dataset that has transformed runs."""
    rows, looks = data(records, curves, study), Methods(study)
    shown = tidy.workloads(rows[rows["family"].notna()])
    figure, axes = style.panels(len(shown), height=3.2)
    if not shown:
        style.say_empty(axes[0], "No transformed model has a test accuracy yet.")
    for panel, workload in zip(axes, shown, strict=False):
        _draw_panel(panel, tidy.in_workload(rows, workload), looks)
        panel.set_title(f"{workload}")
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, looks: Methods) -> None:
    labels = []
    dense = rows[rows["method"] == looks.dense(rows["method"])]["value"]
    if len(dense):
        look = looks[str(looks.dense(rows["method"]))]
        axes.axhline(100 * dense.mean(), color=look.color, lw=1.5)
        labels.append((100 * dense.mean(), look.name, look.color))
    transformed = rows[rows["family"].notna()]
    names = transformed["method"].map(lambda name: looks[name].name)
    for offset, (name, group) in enumerate(transformed.groupby(names, sort=False)):
        look = looks[group["method"].iloc[0]]
        shift = 0.5 * (offset - (names.nunique() - 1) / 2)
        points = []
        for sparsity, own in group.groupby("sparsity"):
            mean, low, high = stats.t_interval(100 * own["value"])
            place = 100 * sparsity + shift
            points.append((place, mean))
            axes.plot([place] * len(own), 100 * own["value"], ".", color=look.color, ms=3)
            if low == low:
                axes.plot([place, place], [low, high], color=look.color, lw=1.5)
        axes.plot(*zip(*points, strict=True), color=look.color, marker=look.marker, ms=7, lw=1)
        labels.append((points[-1][1], name, look.color))
    axes.set_xticks(sorted({round(100 * s) for s in transformed["sparsity"]}))
    axes.set_xlabel("sparsity that sets the size (%)")
    axes.set_ylabel("top-1 test accuracy (%)")
    style.label_ends(axes, labels)


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """State the range of all variants of each workload, none picked by its test accuracy."""
    rows, looks = data(records, curves, study), Methods(study)
    sentences = []
    for workload in tidy.workloads(rows[rows["family"].notna()]):
        own = tidy.in_workload(rows, workload)
        means = own.groupby(["method", "sparsity"])["value"].mean()
        base = (looks.dense(means.index.get_level_values("method")), 0.0)
        variants = 100 * means.drop(base, errors="ignore")
        sentence = (
            f"{len(variants)} variants of {workload}: {variants.min():.1f} to "
            f"{variants.max():.1f}%, {variants.mean():.1f}% in the mean"
        )
        if base in means.index:
            sentence += f"; dense {100 * means[base]:.1f}%"
        sentences.append(sentence + ".")
    return " ".join(sentences)
