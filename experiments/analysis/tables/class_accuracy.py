"""Test accuracy class by class, means over seeds: the dense model, and the treatment of the same
model with the highest mean accuracy. The standard error is that of one run over the class's test
images."""

from typing import Any

import pandas as pd

from experiments.analysis import records as tidy
from experiments.analysis import style

COLUMNS = ["model", "dataset", "class", "images", "dense", "best treatment", "best", "difference"]
COLUMNS += ["stderr", "chance", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per model, dataset and class."""
    totals = tidy.select(records, "accuracy", split="test")
    classes = records[(records["metric"] == "class_accuracy") & (records["split"] == "test")]
    rows = []
    for cell in tidy.cells(classes):
        means = tidy.in_cell(totals, cell).groupby(["method", "sparsity"])["value"].mean()
        others = means.drop(("dense", 0.0), errors="ignore")
        if others.empty or ("dense", 0.0) not in means.index:
            continue
        method, sparsity = others.idxmax()
        own = tidy.in_cell(classes, cell)
        for task, group in own.groupby("task", sort=False):
            dense = group[group["method"] == "dense"]
            best = group[(group["method"] == method) & (group["sparsity"] == sparsity)]
            values = (
                *cell,
                str(task).removeprefix("class:"),
                dense["num_items"].iloc[0],
                dense["value"].mean(),
                style.treatment_name(method, sparsity),
                best["value"].mean(),
                best["value"].mean() - dense["value"].mean(),
                best["stderr"].mean(),
                dense["chance"].iloc[0],
                " ".join([*dense["run"], *best["run"]]),
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)
