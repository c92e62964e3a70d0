"""The two columns of the source's Table 3 for our models: validation perplexity (lower is better)
and mean accuracy over the evaluation tasks (higher is better), means over seeds. The source's own
numbers are in an image and are not known."""

from typing import Any

import pandas as pd

from experiments.analysis import published
from experiments.analysis import records as tidy

COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "perplexity", "mean accuracy"]
COLUMNS += ["perplexity (published)", "mean accuracy (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    perplexities = tidy.validation_perplexity(records)
    accuracies = tidy.select(records, "accuracy_mean")
    source = published.source_id(study)
    keys = ["model", "dataset", "method", "sparsity"]
    rows = []
    for key, group in perplexities.groupby(keys, sort=False):
        own = accuracies[accuracies["run"].isin(group["run"])]
        row = dict(zip(keys, key, strict=True))
        row |= {"seeds": len(group), "perplexity": group["value"].mean()}
        row["mean accuracy"] = own["value"].mean()
        for name, metric in (("perplexity", "validation perplexity"),
                             ("mean accuracy", "few-shot accuracy")):  # fmt: skip
            row[f"{name} (published)"] = published.value(
                source, metric=metric, method=row["method"], sparsity=row["sparsity"]
            )
        rows.append(row | {"runs": " ".join(group["run"])})
    return pd.DataFrame(rows, columns=COLUMNS)
