"""The source's own scores by sparsity, as it published them: nothing here was measured by us, and
its models and data are others. Error bars are the source's standard deviations, where it prints
them. Higher is better."""

import pandas as pd
from matplotlib.figure import Figure

from experiments import published
from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy

METRICS = ("BLEU", "test accuracy", "top-1 accuracy")


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Published scores of each model that the source trained dense and sparse."""
    rows = published.results()
    rows = rows[(rows["source_id"] == published.source_id(study)) & rows["metric"].isin(METRICS)]
    keys = ["model", "dataset", "metric"]
    rows = rows.assign(
        sparsity=pd.to_numeric(rows["sparsity"], errors="coerce"),
        value=pd.to_numeric(rows["value"], errors="coerce"),
        std=pd.to_numeric(rows["seeds_or_std"].str.removeprefix("+-"), errors="coerce"),
    ).dropna(subset=["sparsity", "value"])
    rows = rows.astype({"sparsity": float, "value": float, "std": float})
    several = rows.groupby(keys)["sparsity"].transform("nunique") > 1
    first = rows["table_or_figure"] == rows.groupby(keys)["table_or_figure"].transform("first")
    rows = rows[several & first]
    return rows[[*keys, "method", "sparsity", "value", "std", "table_or_figure", "confidence"]]


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per dataset and metric; a line per model, or per method where they differ."""
    rows, looks = data(records, curves, study), Methods()
    shown = list(rows.groupby(["dataset", "metric"], sort=False))
    figure, axes = style.panels(len(shown), height=2.8)
    if not shown:
        style.say_empty(axes[0], "The source publishes no such numbers.")
    for panel, ((dataset, metric), own) in zip(axes, shown, strict=False):
        labels = []
        dense = own[own["sparsity"] == 0]
        for names, line in _lines(own[own["sparsity"] > 0]):
            start = dense[dense["model"] == line["model"].iloc[0]]
            line = pd.concat([start, line]).sort_values("sparsity")
            look = looks[names]
            panel.errorbar(100 * line["sparsity"], line["value"], yerr=line["std"], capsize=2,
                           color=look.color, marker=look.marker, lw=1.3)  # fmt: skip
            labels.append((line["value"].iloc[-1], names, look.color))
        panel.set_xticks(sorted(100 * own["sparsity"].unique()))
        panel.set_xlabel("sparsity (%)")
        panel.set_ylabel(metric)
        panel.set_title(f"Published · {dataset}")
        style.label_ends(panel, labels)
    return figure


def _lines(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Lines by model, and by method where a model has several."""
    lines = []
    for model, own in rows.groupby("model", sort=False):
        methods = list(own.groupby("method", sort=False))
        lines += [
            (f"{model}, {method}" if len(methods) > 1 else str(model), line)
            for method, line in methods
        ]
    return lines


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Name the tables that the numbers are from."""
    rows = data(records, curves, study)
    places = ", ".join(rows["table_or_figure"].unique())
    hows = {published.HOW[how] for how in rows["confidence"] if how in published.HOW}
    read = f", {' and '.join(sorted(hows))}" if hows else ""
    return f"From {places} of {study.source}{read}." if places else ""
