"""Final validation perplexity against the training budget, every point a finished run with its own
learning-rate schedule: one panel per sparsity, with the dense model in each. Small points are
seeds, lines join means over all seeds of a budget, bars are their 95% t interval. Lower is
better."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import select as selection
from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True
AXES = ("tokens", "steps", "flops")
METRICS = {"tokens": "tokens", "steps": "steps", "flops": "flops_executed"}
KEYS = ["model", "dataset", "method", "sparsity"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Perplexity of each treatment that was trained for two budgets or more."""
    rows = tidy.validation_perplexity(records)[["run", *KEYS, "recipe", "seed", "value"]]
    rows = rows.join(selection.per_run(records, *METRICS.values()), on="run")
    if study.trials:
        rows = rows.iloc[:0]
    is_own = rows["run"].isin(selection.headline(rows, study)["run"])
    own = rows[is_own].groupby(KEYS)["tokens"].mean().rename("own tokens")
    rows = rows.join(own, on=KEYS)
    rows = rows[is_own | (rows["tokens"] != rows["own tokens"])].drop(columns="own tokens")
    several = rows.groupby(KEYS)["tokens"].transform("nunique") > 1
    return rows[several].rename(columns={"flops_executed": "flops"})


def budget_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean perplexity of one treatment by budget."""
    return rows.groupby("tokens")[["value", "steps", "flops"]].mean().reset_index()


def draw(
    records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy, *, x: str = "tokens"
) -> Figure:
    """One panel per model, dataset and sparsity."""
    rows, looks = data(records, curves, study), Methods(study)
    shown = [
        (workload, sparsity)
        for workload in tidy.workloads(rows)
        for sparsity in sorted(set(tidy.in_workload(rows, workload)["sparsity"]) - {0.0})
    ]
    figure, axes = style.panels(len(shown), height=3.2)
    if not shown:
        style.say_empty(axes[0], "No method has finished runs of two budgets.")
    for panel, (workload, sparsity) in zip(axes, shown, strict=False):
        own = tidy.in_workload(rows, workload)
        _draw_panel(panel, own[own["sparsity"].isin([0.0, sparsity])], looks, x)
        panel.set_title(f"{workload}, dense and {100 * sparsity:g}%")
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, looks: Methods, x: str) -> None:
    labels = []
    for method, sparsity, own in selection.by_treatment(rows):
        look = looks[method]
        axes.plot(own[x], own["value"], ".", color=look.color, ms=4)
        style.interval_bars(axes, own, x, "tokens", look.color)
        means = budget_means(own)
        axes.plot(means[x], means["value"], color=look.color, marker=look.marker, ms=6, lw=1.3)
        if len(means):
            text = looks.treatment(method, sparsity)
            labels.append((means["value"].iloc[-1], text, look.color))
    style.count_axis(axes, style.AXES[x][1], None if x == "flops" else rows[x].unique())
    axes.set_ylabel("validation perplexity per token")
    style.label_ends(axes, labels)


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """State how far each method is from Static at each budget, and how far seeds spread."""
    rows, looks = data(records, curves, study), Methods(study)
    rows = rows.assign(line=looks.lines(rows))
    sentences = []
    for workload in tidy.workloads(rows):
        own = tidy.in_workload(rows, workload)
        for sparsity, group in own[own["sparsity"] > 0].groupby("sparsity"):
            is_static = looks.source_names(group) == "static"
            static = group[is_static]
            for line, other in group[~is_static].groupby("line", sort=False):
                sentences.append(_gap_sentence(other, static, looks.treatment(line, sparsity)))
    if sentences:
        seeds = rows.groupby([*KEYS, "tokens"])["seed"].nunique()
        sentences.append(f"A point has {seeds.min()} to {seeds.max()} seeds.")
    return " ".join(sentence for sentence in sentences if sentence)


def _gap_sentence(rows: pd.DataFrame, static: pd.DataFrame, name: str) -> str:
    keys = ["tokens", "seed"]
    both = rows[[*keys, "value"]].merge(static[[*keys, "value"]], on=keys, suffixes=("", "_static"))
    both = both.assign(gap=both["value"] - both["value_static"])
    if both.empty:
        return ""
    parts = [
        f"{gaps.mean():+.2f} at {tokens:,.0f} tokens ({len(gaps)} "
        f"{'seed' if len(gaps) == 1 else 'seeds'})"
        for tokens, gaps in both.groupby("tokens")["gap"]
    ]
    most = both.groupby("tokens")["gap"].agg(["size", "std"])
    most = most[most["size"] > 1]
    spread = most["std"].max()
    text = f"{name} minus Static: {', '.join(parts)}"
    if len(most):
        text += f"; the difference varies between seeds by a standard deviation of {spread:.2f}"
    return text + "."
