"""Validation loss of models of several sizes at equal training tokens per weight of the blocks:
against the number of those weights, zeros included, and against executed training FLOPs. Points
are seeds; lines are power laws fitted to all of them. Below: the loss of a sparse model above that
of the dense one of the same size, paired by seed; the line joins the means."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import select as selection
from experiments.analysis import stats, style
from experiments.analysis.methods import INK, Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

MIN_SIZES = 3
#: Models whose tokens per weight are this close to the first model's count as equal.
EQUAL = 0.1
X_AXES = {"weights": "weights of the decoder blocks", "flops": "executed training FLOPs"}
COLUMNS = ["run", "model", "dataset", "method", "sparsity", "seed"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Final validation loss of each treatment with runs on three sizes or more of a dataset."""
    rows = tidy.validation_perplexity(records)
    rows = rows[COLUMNS].assign(loss=np.log(rows["value"]))
    costs = selection.per_run(records, "tokens", "flops_executed")
    rows = rows.join(costs, on="run").rename(columns={"flops_executed": "flops"})
    rows["weights"] = rows["model"].map(selection.sparsifiable(records)).astype(float)
    rows["tokens per weight"] = rows["tokens"] / rows["weights"]
    rows = rows.dropna(subset=["tokens per weight"])
    first = rows.groupby("dataset")["tokens per weight"].transform("first")
    rows = rows[(rows["tokens per weight"] / first - 1).abs() <= EQUAL]
    sizes = rows.groupby(["dataset", "method", "sparsity"])["weights"].transform("nunique")
    return rows[sizes >= MIN_SIZES]


def penalties(rows: pd.DataFrame, looks: Methods, method: str, sparsity: float) -> pd.DataFrame:
    """Loss above the dense model of the same size, for each size and seed that both have."""
    dense = looks.dense(rows["method"])
    keys = ["weights", "seed"]
    own = rows[(rows["method"] == method) & (rows["sparsity"] == sparsity)]
    base = rows[rows["method"] == dense] if dense else rows.iloc[:0]
    both = own[[*keys, "loss"]].merge(base[[*keys, "loss"]], on=keys, suffixes=("", "_dense"))
    return both.assign(penalty=both["loss"] - both["loss_dense"])


def trend(table: pd.DataFrame) -> tuple[float, float, float, float]:
    """Fitted change of the penalty when the size doubles, its 95% interval, and the intercept."""
    from scipy import stats as scipy_stats

    x = np.log2(table["weights"])
    if x.nunique() < MIN_SIZES:
        return math.nan, math.nan, math.nan, math.nan
    fit = scipy_stats.linregress(x, table["penalty"])
    half = scipy_stats.t.ppf((1 + stats.LEVEL) / 2, len(table) - 2) * fit.stderr
    return fit.slope, fit.slope - half, fit.slope + half, fit.intercept


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """Three panels per dataset."""
    rows, looks = data(records, curves, study), Methods(study)
    datasets = list(rows["dataset"].unique())
    figure, axes = style.panels(3 * len(datasets), height=3.0)
    if not datasets:
        sentence = f"No method has finished runs of {MIN_SIZES} sizes at equal tokens per weight."
        style.say_empty(axes[0], sentence)
    for place, dataset in enumerate(datasets):
        own = rows[rows["dataset"] == dataset]
        upper, middle, lower = axes[3 * place : 3 * place + 3]
        for panel, x in ((upper, "weights"), (middle, "flops")):
            _draw_losses(panel, own, looks, x)
            panel.set_title(f"Loss by {'size' if x == 'weights' else 'cost'} · {dataset}")
        _draw_penalties(lower, own, looks)
        lower.set_title("Sparse minus dense, same size and seed")
    return figure


def _draw_losses(axes: Axes, rows: pd.DataFrame, looks: Methods, x: str) -> None:
    from scipy import stats as scipy_stats

    labels = []
    for method, sparsity, own in selection.by_treatment(rows):
        look = looks[method]
        axes.plot(own[x], own["loss"], look.marker, color=look.color, ms=4, alpha=0.7, mew=0)
        fit = scipy_stats.linregress(np.log(own[x]), np.log(own["loss"]))
        line = np.geomspace(own[x].min(), own[x].max(), 50)
        fitted = np.exp(fit.intercept) * line**fit.slope
        axes.plot(line, fitted, color=look.color, lw=1.5)
        labels.append((fitted[-1], looks.treatment(method, sparsity), look.color))
    style.count_axis(axes, X_AXES[x], rows[x].unique() if x == "weights" else None)
    axes.set_ylabel("nats per token")
    style.label_ends(axes, labels)


def _draw_penalties(axes: Axes, rows: pd.DataFrame, looks: Methods) -> None:
    labels = []
    for method, sparsity, _ in selection.by_treatment(rows[rows["sparsity"] > 0]):
        look = looks[method]
        table = penalties(rows, looks, method, sparsity)
        if table.empty:
            continue
        axes.plot(table["weights"], table["penalty"], look.marker, color=look.color, ms=4)
        means = table.groupby("weights")["penalty"].mean()
        axes.plot(means.index, means, color=look.color, lw=1.5)
        labels.append((means.iloc[-1], looks.treatment(method, sparsity), look.color))
    if not labels:
        style.say_empty(axes, "No dense run shares its size and seed with a sparse one.")
        return
    axes.axhline(0, color=INK, lw=0.8)
    style.count_axis(axes, X_AXES["weights"], rows["weights"].unique())
    axes.set_ylabel("nats per token")
    style.label_ends(axes, labels)


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say for each sparse method whether its penalty changes with the size."""
    rows, looks = data(records, curves, study), Methods(study)
    sentences = []
    for dataset, own in rows.groupby("dataset", sort=False):
        dense = looks.dense(own["method"])
        if dense is None:
            continue
        ratio = own["tokens per weight"].mean()
        name = looks[dense].name
        sentences.append(f"On {dataset}, {ratio:.0f} tokens per weight, penalties over {name}:")
        for method, sparsity, _ in selection.by_treatment(own[own["sparsity"] > 0]):
            sentences.append(_trend_sentence(own, looks, method, sparsity))
    return " ".join(sentence for sentence in sentences if sentence)


def _moves_at_each_step(table: pd.DataFrame, sign: float) -> bool:
    """Whether each size differs from the one before in this direction (Welch, one-sided 5%)."""
    from scipy import stats as scipy_stats

    sizes = [group["penalty"] for _, group in table.groupby("weights")]
    alternative = "greater" if sign > 0 else "less"
    return all(
        scipy_stats.ttest_ind(after, before, equal_var=False, alternative=alternative).pvalue < 0.05
        for before, after in zip(sizes, sizes[1:], strict=False)
    )


def _trend_sentence(rows: pd.DataFrame, looks: Methods, method: str, sparsity: float) -> str:
    table = penalties(rows, looks, method, sparsity)
    slope, low, high, _ = trend(table)
    if slope != slope:
        return ""
    means = table.groupby("weights")["penalty"].mean()
    words = "these sizes cannot tell whether it changes"
    if high < 0 or low > 0:
        words = "it shrinks with size" if means.iloc[-1] >= 0 else "it falls with size"
        words = "it grows with size" if low > 0 else words
        if not _moves_at_each_step(table, math.copysign(1, slope)):
            words = "sizes differ, but it does not change from each one to the next"
    values = ", ".join(f"{mean:+.3f}" for mean in means)
    return (
        f"{looks.treatment(method, sparsity)} {values} nats from the smallest size to the "
        f"largest; "
        f"per doubling {slope:+.3f} "
        f"[{low:+.3f}, {high:+.3f}], so {words} ({len(table)} paired runs, "
        f"{len(means)} sizes)."
    )
