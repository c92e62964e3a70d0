"""BLEU of translations of the test split (sacrebleu, 0 to 100, greedy): mean over seeds with its
95% t interval, cut at 0 and 100, the mean difference to the dense model over the seeds that both
have, and what the source prints for its own, larger model."""

from typing import Any

import numpy as np
import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "BLEU", "low", "high"]
COLUMNS += ["minus dense", "paired seeds", "BLEU (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    bleu = records[(records["metric"] == "bleu") & records["value"].notna()]
    source, looks, rows = published.source_id(study), Methods(study), []
    for workload in tidy.workloads(bleu):
        chosen = tidy.in_workload(bleu, workload)
        dense = tidy.by_seed(chosen[chosen["method"] == looks.dense(chosen["method"].unique())])
        for method, sparsity in tidy.treatments(chosen):
            own = chosen[(chosen["method"] == method) & (chosen["sparsity"] == sparsity)]
            mean, low, high = stats.t_interval(own["value"])
            low, high = np.clip((low, high), 0, 100)
            cells = (*workload, method, sparsity, len(own), mean, low, high)
            row: dict[str, Any] = dict(zip(COLUMNS, cells, strict=False))
            pair = stats.paired(tidy.by_seed(own), dense)
            if sparsity and pair.num_seeds:
                row |= {"minus dense": pair.effect, "paired seeds": pair.num_seeds}
            row["BLEU (published)"] = published.value(
                source, metric="BLEU", method=looks.source_name(method), sparsity=sparsity
            )
            row["runs"] = " ".join(own["run"])
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)
