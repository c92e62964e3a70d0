"""Validation perplexity after training (lower is better): mean over seeds with its 95% t interval,
and the mean difference to Static over the seeds that both have. Measured by
the evaluation, on up to 65,536 tokens spread over the validation split, else by the trainer's last
pass."""

from typing import Any

import pandas as pd

from experiments.analysis import published, selection, stats, style
from experiments.analysis import records as tidy

COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "perplexity", "low", "high"]
COLUMNS += ["minus Static", "paired seeds", "perplexity (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    values = tidy.validation_perplexity(records)
    source = published.source_id(study)
    rows = []
    for cell in tidy.cells(values):
        chosen = tidy.in_cell(values, cell)
        for method, sparsity in tidy.treatments(chosen):
            rows.append(_row(chosen, cell, method, sparsity, source))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    values: pd.DataFrame, cell: tuple[str, str], method: str, sparsity: float, source: str | None
) -> dict[str, Any]:
    own = values[(values["method"] == method) & (values["sparsity"] == sparsity)]
    static = values[(selection.algorithms(values) == "static") & (values["sparsity"] == sparsity)]
    mean, low, high = stats.t_interval(own["value"])
    row = dict(zip(COLUMNS, (*cell, method, sparsity, len(own), mean, low, high), strict=False))
    _, algorithm = style.split_method(method)
    if algorithm != "static":
        pair = stats.paired(tidy.by_seed(own), tidy.by_seed(static))
        if pair.num_seeds:
            row |= {"minus Static": pair.effect, "paired seeds": pair.num_seeds}
    row["perplexity (published)"] = published.value(
        source, metric="validation perplexity", method=method, sparsity=sparsity
    )
    row["runs"] = " ".join(own["run"])
    return row
