"""Validation perplexity after training: small points are seeds, the large point their mean, the
bar its 95% t interval over seeds (no bar below two seeds). Lower is better."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import stats, style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Validation perplexity of every run."""
    columns = ["run", "model", "dataset", "method", "sparsity", "seed", "split", "task", "value"]
    return tidy.validation_perplexity(records)[columns]


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model and dataset, one row per method."""
    values, looks = data(records, curves, study), Methods(study)
    workloads = tidy.workloads(values)
    counts = [len(tidy.treatments(tidy.in_workload(values, workload))) for workload in workloads]
    figure, axes = style.panels(len(workloads), heights=[0.9 + 0.36 * count for count in counts])
    if not workloads:
        style.say_empty(axes[0], "No run has a perplexity yet.")
    for panel, workload in zip(axes, workloads, strict=False):
        rows = tidy.in_workload(values, workload)
        pairs = tidy.treatments(rows)
        for place, (method, sparsity) in enumerate(pairs):
            chosen = rows[(rows["method"] == method) & (rows["sparsity"] == sparsity)]
            look = looks[method]
            mean, low, high = stats.t_interval(chosen["value"])
            if low == low:
                panel.plot([low, high], [place, place], color=look.color, lw=2)
            panel.plot(chosen["value"], [place] * len(chosen), "o", color=look.color, ms=3)
            panel.plot(mean, place, look.marker, color=look.color, ms=8, alpha=0.8)
            panel.annotate(
                f"{mean:.2f}", (mean, place), (0, 7), textcoords="offset points", ha="center",
                fontsize=8.5,
            )  # fmt: skip
        panel.set_yticks(range(len(pairs)), [looks.treatment(*pair) for pair in pairs])
        panel.set_ylim(len(pairs) - 0.4, -0.7)
        panel.grid(axis="y", visible=False)
        panel.set_xlabel("validation perplexity per token")
        panel.set_title(f"{workload}")
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """State the range of the sparse means of each workload, and how they stand to dense."""
    values, looks = data(records, curves, study), Methods(study)
    sentences = []
    for workload in tidy.workloads(values):
        means = tidy.in_workload(values, workload).groupby(["method", "sparsity"])["value"].mean()
        sparse = means[means.index.get_level_values("sparsity") > 0]
        if not len(sparse):
            continue
        sentence = (
            f"Sparse means of {workload}: {sparse.min():.2f} "
            f"({looks.treatment(*sparse.idxmin())}) to {sparse.max():.2f} "
            f"({looks.treatment(*sparse.idxmax())})"
        )
        dense = looks.dense(tidy.in_workload(values, workload)["method"])
        if dense:
            sentence += f"; {looks[dense].name} {means[(dense, 0.0)]:.2f}"
        sentences.append(sentence + ".")
    return " ".join(sentences)
