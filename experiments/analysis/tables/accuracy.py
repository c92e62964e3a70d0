"""Test accuracy of image classifiers (higher is better): mean over seeds with its 95% t interval,
and the mean difference to the same model trained dense over the seeds that both have; top-5
accuracy, loss in nats and expected calibration error beside it. The standard error is that of one
run over its test images. FLOPs are those executed in training, relative to the dense model. The
sparsity of a Sparse-IFT model is the one that sets its size; its masks have their own."""

from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.analysis.methods import ALGORITHMS, DENSE, Method, Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

SPLIT = "test"
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "accuracy", "low", "high", "stderr"]
COLUMNS += ["mask sparsity"]
COLUMNS += ["images", "chance", "against chance", "minus dense", "paired seeds", "top-5", "loss"]
COLUMNS += ["calibration error", "FLOPs / dense", "non-zero parameters"]
COLUMNS += ["accuracy (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    values = tidy.select(records, "accuracy", split=SPLIT)
    looks = Methods(study)
    source, masked = published.source_id(study), tidy.mask_sparsity(curves)
    rows = []
    for place, workload in enumerate(tidy.workloads(values)):
        chosen = tidy.in_workload(values, workload)
        for method, sparsity in tidy.treatments(chosen):
            row = _row(records, chosen, workload, looks[method], sparsity)
            row["mask sparsity"] = masked.reindex(row["runs"].split()).mean()
            # The source's network stands for the study's first model; larger ones are others.
            known = _published(source, looks[method], sparsity) if place == 0 else published.UNKNOWN
            rows.append(row | {"accuracy (published)": known})
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    records: pd.DataFrame,
    values: pd.DataFrame,
    workload: tidy.Workload,
    method: Method,
    sparsity: float,
) -> dict[str, Any]:
    own = values[(values["method"] == method.key) & (values["sparsity"] == sparsity)]
    dense = values[(values["algorithm"] == DENSE) & values["family"].isna()]
    mean, low, high = stats.t_interval(own["value"])
    row = dict(
        zip(COLUMNS, (*workload, method.key, sparsity, len(own), mean, low, high), strict=False)
    )
    stderr, chance = own["stderr"].mean(), own["chance"].mean()
    num_images = own["num_items"].iloc[0]
    row |= {"stderr": stderr, "images": num_images, "chance": chance}
    row["against chance"] = stats.against_chance(mean, stderr, chance, num_items=num_images)
    if not method.is_dense:
        pair = stats.paired(tidy.by_seed(own), tidy.by_seed(dense))
        if pair.num_seeds:
            row |= {"minus dense": pair.effect, "paired seeds": pair.num_seeds}

    def average(metric: str, runs: pd.Series, split: str | None = None) -> float:
        found = tidy.select(records, metric, split=split)
        return found[found["run"].isin(runs)]["value"].mean()

    row["top-5"] = average("accuracy_top5", own["run"], SPLIT)
    row["loss"] = average("loss", own["run"], SPLIT)
    row["calibration error"] = average("calibration_error", own["run"], SPLIT)
    cost = average("flops_executed", dense["run"])
    row["FLOPs / dense"] = average("flops_executed", own["run"]) / cost
    row["non-zero parameters"] = average("num_nonzero", own["run"])
    row["runs"] = " ".join(own["run"])
    return row


def _published(source: str | None, method: Method, sparsity: float) -> str:
    """The source's value for its ResNet-18 on CIFAR-100, as a fraction."""
    if not method.is_plain:
        return published.UNKNOWN
    name = ALGORITHMS.get(method.algorithm, (method.algorithm,))[0]
    if method.family:
        name = f"Sparse {method.family.capitalize()} + {name}"
    rows = published.results()
    rows = rows[(rows["source_id"] == source) & (rows["metric"] == "test accuracy")]
    rows = rows[(rows["model"] == "ResNet-18") & (rows["method"] == name)]
    rows = rows[pd.to_numeric(rows["sparsity"]) == sparsity]
    if rows.empty:
        return published.UNKNOWN
    row = rows.iloc[0]
    share = float(row["value"]) / (100 if row["unit"] == "%" else 1)
    return f"{share:.3f} ({row['model']}, {row['dataset']})"
