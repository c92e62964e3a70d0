"""The two columns of the source's Table 3 for our models: validation perplexity (lower is better)
and mean few-shot accuracy over the tasks of the Open LLM Leaderboard v1 without GSM8K (higher is
better), means over seeds; beside them the mean accuracy over our other tasks, all zero-shot. The
source's own numbers are in an image and are not known. Where a prompt does not fit the context its
beginning is cut, examples first: the table of task scores says how often."""

import pandas as pd

from experiments import published
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "perplexity", "few-shot mean"]
COLUMNS += ["zero-shot mean", "perplexity (published)", "few-shot mean (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    perplexities = tidy.validation_perplexity(records)
    means = {
        column: tidy.select(records, metric)
        for column, metric in (
            ("few-shot mean", "leaderboard_mean"),
            ("zero-shot mean", "accuracy_mean"),
        )
    }
    source, looks = published.source_id(study), Methods(study)
    keys = ["model", "dataset", "method", "sparsity"]
    rows = []
    for key, group in perplexities.groupby(keys, sort=False):
        row = dict(zip(keys, key, strict=True))
        facts = {"method": looks.source_name(row["method"]), "sparsity": row["sparsity"]}
        row |= {"seeds": len(group), "perplexity": group["value"].mean()}
        for column, scores in means.items():
            row[column] = scores.loc[scores["run"].isin(group["run"]), "value"].mean()
        for name, metric in (("perplexity", "validation perplexity"),
                             ("few-shot mean", "few-shot accuracy")):  # fmt: skip
            row[f"{name} (published)"] = published.value(source, metric=metric, **facts)
        rows.append(row | {"runs": " ".join(group["run"])})
    return pd.DataFrame(rows, columns=COLUMNS)
