"""BLEU after fine-tuning against the sparsity of pre-training, for dense and for sparse
fine-tuning, and for a dense one whose revived weights start from a scaled normal instead of zero:
small points are seeds, the line joins their means, bars are their 95% t interval, cut at 0 and 100.
Higher is better."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.analysis.tables.generation import TASKS
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

LINES = {
    "dense": ("#0072B2", "D"),
    "sparse": ("#D55E00", "s"),
    "dense, scaled-normal": ("#009E73", "^"),
}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """BLEU of every fine-tuned run, with the sparsity of its pre-training."""
    rows = records[
        records["task"].isin(TASKS) & (records["metric"] == "bleu") & records["value"].notna()
    ]
    phases = {key: Methods(study).phases(key) for key in rows["method"].unique()}
    rows = rows[rows["method"].map(phases).notna()]
    rows = rows[["run", "model", "dataset", "method", "seed", "value"]].copy()
    rows["pre-training sparsity"] = [phases[method][0] for method in rows["method"]]
    rows["fine-tuning"] = [phases[method][1] for method in rows["method"]]
    return rows


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model and dataset."""
    values = data(records, curves, study)
    workloads = tidy.workloads(values)
    figure, axes = style.panels(len(workloads), height=3.0)
    if not workloads:
        style.say_empty(axes[0], "No fine-tuned run has been evaluated yet.")
    for panel, workload in zip(axes, workloads, strict=False):
        rows = tidy.in_workload(values, workload)
        labels = []
        for fine_tuning, (color, marker) in LINES.items():
            own = rows[(rows["fine-tuning"] == fine_tuning)]
            if own.empty:
                continue
            means = own.groupby("pre-training sparsity")["value"].mean()
            panel.plot(own["pre-training sparsity"], own["value"], marker, ms=3,
                       color=color, alpha=0.6)  # fmt: skip
            level = "pre-training sparsity"
            style.interval_bars(panel, own, level, level, color, most=100.0)
            panel.plot(means.index, means, marker=marker, ms=7, color=color)
            labels.append((means.iloc[-1], f"{fine_tuning} fine-tuning", color))
        levels = sorted(rows["pre-training sparsity"].unique())
        panel.set_xticks(levels, [f"{100 * s:g}%" if s else "dense" for s in levels])
        panel.set_xlabel("sparsity of pre-training")
        panel.set_ylabel("BLEU")
        panel.set_title(f"{workload}")
        style.label_ends(panel, labels)
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """State the mean BLEU of each method, by workload."""
    values, sentences = data(records, curves, study), []
    for workload in tidy.workloads(values):
        own = tidy.in_workload(values, workload)
        means = own.groupby(["fine-tuning", "pre-training sparsity"])["value"].mean()
        parts = [f"{kind} after {level:.0%}: {mean:.1f}" for (kind, level), mean in means.items()]
        sentences.append(f"{workload}: {'; '.join(parts)}.")
    start = "Mean BLEU by fine-tuning and sparsity of pre-training."
    return " ".join([start, *sentences]) if sentences else ""
