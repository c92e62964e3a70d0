"""Validation perplexity against sparsity: small points are seeds, large ones their mean, bars
its 95% t interval, bands dense models. The longest trainings come first. Lower is better."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.findings.estimate import mean_interval
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

#: Distance of methods beside each other, as a share of the distance of the outer ticks.
ASIDE = 0.012
COLUMNS = "run model dataset method algorithm sparsity seed split task value".split()


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Perplexity of every run on workloads that have two sparsities or more; arms whose settings
    were chosen after the study had run are left out."""
    rows, looks = tidy.validation_perplexity(records), Methods(study)
    rows = rows[rows["family"].isna()][COLUMNS]
    rows = rows[~rows["method"].map(lambda method: looks[method].retuned).astype(bool)]
    rows = rows.assign(line=rows["method"].map(looks.line).astype("string"))
    levels = rows[rows["sparsity"] > 0].groupby(["model", "dataset"])["sparsity"].nunique()
    several = levels[levels > 1].reset_index()[["model", "dataset"]]
    return rows.merge(several, on=["model", "dataset"])


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model and dataset, the one of most tokens first."""
    rows, looks = data(records, curves, study), Methods(study)
    budgets = {
        workload: style.tokens(tidy.in_workload(rows, workload), study)
        for workload in tidy.workloads(rows)
    }
    workloads = sorted(budgets, key=lambda workload: -budgets[workload][-1])
    figure, axes = style.panels(len(workloads), height=3.8)
    if not workloads:
        style.say_empty(axes[0], "No model has finished runs at two sparsities.")
    for panel, workload in zip(axes, workloads, strict=False):
        _draw_panel(panel, tidy.in_workload(rows, workload), looks)
        panel.set_title(style.title(workload, budgets[workload]))
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, looks: Methods) -> None:
    labels = []
    for method, own in rows[rows["sparsity"] == 0].groupby("method", sort=False):
        look = looks[method]
        mean, low, high = mean_interval(own["value"])
        axes.axhline(mean, color=look.color, lw=1)
        if low == low:
            axes.axhspan(low, high, color=look.color, alpha=0.12, lw=0)
        labels.append((mean, look.name, look))
    sparse = rows[rows["sparsity"] > 0]
    lefts = 1 / (1 - sparse["sparsity"])
    step = (lefts.max() / lefts.min()) ** ASIDE
    places = _places(sparse)
    for method, group in sparse.groupby("line", sort=False):
        look = looks[method]
        points = []
        for sparsity, own in group.groupby("sparsity"):
            x = step ** places[method, sparsity] / (1 - sparsity)
            mean, low, high = mean_interval(own["value"])
            axes.plot([x] * len(own), own["value"], ".", color=look.color, ms=4)
            if low == low:
                axes.plot([x, x], [low, high], color=look.color, lw=1.6)
            points.append((x, mean))
        axes.plot(*zip(*points, strict=True), color=look.color, marker=look.marker, ms=6, lw=1.2)
        labels.append((points[-1][1], look.name, look))
    levels = sorted(sparse["sparsity"].unique())
    axes.set_xscale("log")
    axes.set_xticks([1 / (1 - level) for level in levels], [f"{100 * s:g}%" for s in levels])
    axes.minorticks_off()
    axes.set_xlabel("sparsity of the block weights")
    axes.set_ylabel("validation perplexity per token")
    style.label_ends(axes, labels)


def _places(sparse: pd.DataFrame) -> dict[tuple[str, float], float]:
    """Line and sparsity to the line's place beside the tick, 0 at the tick itself."""
    places: dict[tuple[str, float], float] = {}
    for sparsity, own in sparse.groupby("sparsity"):
        lines = [name for name in sparse["line"].unique() if name in set(own["line"])]
        middle = (len(lines) - 1) / 2
        places |= {(name, float(sparsity)): at - middle for at, name in enumerate(lines)}
    return places
