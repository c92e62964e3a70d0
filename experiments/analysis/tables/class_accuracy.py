"""Test accuracy class by class, means over seeds: the dense model, and the treatment of the same
model with the lowest mean validation loss, chosen without a look at the test split. The standard
error is that of one run over the class's test images; whether the chosen treatment is above chance
is judged by it."""

import pandas as pd

from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = [
    "model",
    "dataset",
    "class",
    "images",
    "dense",
    "chosen by validation",
    "chosen",
    "difference",
]
COLUMNS += ["stderr", "chance", "against chance", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset and class."""
    totals = tidy.select(records, "loss", split="validation")
    classes = records[(records["metric"] == "class_accuracy") & (records["split"] == "test")]
    looks, rows = Methods(study), []
    for workload in tidy.workloads(classes):
        means = tidy.in_workload(totals, workload).groupby(["method", "sparsity"])["value"].mean()
        base = (looks.dense(means.index.get_level_values("method")), 0.0)
        others = means.drop(base, errors="ignore")
        if others.empty or base not in means.index:
            continue
        method, sparsity = others.idxmin()
        own = tidy.in_workload(classes, workload)
        for task, group in own.groupby("task", sort=False):
            dense = group[group["method"] == base[0]]
            chosen = group[(group["method"] == method) & (group["sparsity"] == sparsity)]
            num_images, chance = dense["num_items"].iloc[0], dense["chance"].iloc[0]
            score, stderr = chosen["value"].mean(), chosen["stderr"].mean()
            values = (
                *workload,
                str(task).removeprefix("class:"),
                num_images,
                dense["value"].mean(),
                looks.treatment(method, sparsity),
                score,
                score - dense["value"].mean(),
                stderr,
                chance,
                stats.against_chance(score, stderr, chance, num_items=num_images),
                " ".join([*dense["run"], *chosen["run"]]),
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)
