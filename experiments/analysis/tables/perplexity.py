"""Validation perplexity after training (lower is better): mean over seeds with its 95% t interval,
and where there is one, the mean difference to Static, of Sparse-IFT models to the dense one, over
the seeds that both have. The sparsity of a Sparse-IFT model is the one that sets its size; its
masks have their own. Measured by the evaluation, on up to 65,536 tokens spread over the validation
split, else by the trainer's last pass."""

from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "perplexity", "low", "high"]
COLUMNS += ["mask sparsity"]
BASELINES = ["minus Static", "minus Dense"]
COLUMNS += [*BASELINES, "paired seeds", "perplexity (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    values = tidy.validation_perplexity(records)
    looks = Methods(study)
    source, masked = published.source_id(study), tidy.mask_sparsity(curves)
    rows = []
    for workload in tidy.workloads(values):
        chosen = tidy.in_workload(values, workload)
        for method, sparsity in tidy.treatments(chosen):
            row = _row(chosen, workload, looks, method, sparsity, source)
            row["mask sparsity"] = masked.reindex(row["runs"].split()).mean()
            rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    compared = [*BASELINES, "paired seeds"]
    return table.drop(columns=[key for key in compared if table[key].isna().all()])


def _row(
    values: pd.DataFrame,
    workload: tidy.Workload,
    looks: Methods,
    method: str,
    sparsity: float,
    source: str | None,
) -> dict[str, Any]:
    own = values[(values["method"] == method) & (values["sparsity"] == sparsity)]
    mean, low, high = stats.t_interval(own["value"])
    row = dict(zip(COLUMNS, (*workload, method, sparsity, len(own), mean, low, high), strict=False))
    if looks[method].family is not None:
        baseline = "minus Dense"
        other = values[values["method"] == looks.dense(values["method"].unique())]
    elif looks.source_name(method) != "static":
        is_static = looks.source_names(values) == "static"
        baseline, other = "minus Static", values[is_static & (values["sparsity"] == sparsity)]
    else:
        baseline, other = "", values.iloc[:0]
    pair = stats.paired(tidy.by_seed(own), tidy.by_seed(other))
    if pair.num_seeds:
        row |= {baseline: pair.effect, "paired seeds": pair.num_seeds}
    row["perplexity (published)"] = published.value(
        source, metric="validation perplexity", method=looks.source_name(method), sparsity=sparsity
    )
    row["runs"] = " ".join(own["run"])
    return row
