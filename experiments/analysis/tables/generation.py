"""Writing sentences from facts after fine-tuning: BLEU (sacrebleu, 0 to 100) and the share of
sentences that are right word for word; means over seeds, with the 95% t interval of BLEU, cut at 0
and 100, and the mean difference to dense pre-training over the seeds that both have."""

from typing import Any

import numpy as np
import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

PUBLISHED_COLUMN = "BLEU (published, GPT-2 Small on E2E)"
TASKS = ("facts_to_text", "data_to_text")
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "BLEU", "low", "high"]
COLUMNS += ["minus dense", "paired seeds", "exact", "items", PUBLISHED_COLUMN, "runs"]
#: Rows of the source's Table 1 and Figure 2 (E2E, GPT-2 Small) that stand beside ours.
PUBLISHED = {
    (0.0, "dense"): "dense pre-train + dense fine-tune",
    (0.5, "dense"): "static sparse pre-train (Pile) + dense fine-tune",
    (0.75, "dense"): "static sparse pre-train (Pile) + dense fine-tune",
    (0.5, "sparse"): "static sparse pre-train + SPARSE fine-tune",
    (0.75, "sparse"): "static sparse pre-train + SPARSE fine-tune",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    values = records[records["task"].isin(TASKS) & records["value"].notna()]
    source, looks = published.source_id(study), Methods(study)
    rows = []
    for workload in tidy.workloads(values):
        chosen = tidy.in_workload(values, workload)
        bleu = chosen[chosen["metric"] == "bleu"]
        is_dense = [looks.phases(key) == (0.0, "dense") for key in bleu["method"]]
        baseline = tidy.by_seed(bleu[is_dense])
        for method, sparsity in tidy.treatments(bleu):
            own = chosen[(chosen["method"] == method) & (chosen["sparsity"] == sparsity)]
            scores = own[own["metric"] == "bleu"]
            mean, low, high = stats.t_interval(scores["value"])
            low, high = np.clip((low, high), 0, 100)
            start = (*workload, method, sparsity, len(scores), mean, low, high)
            row: dict[str, Any] = dict(zip(COLUMNS, start, strict=False))
            pair = stats.paired(tidy.by_seed(scores), baseline)
            phases = looks.phases(method)
            if phases != (0.0, "dense") and pair.num_seeds:
                row |= {"minus dense": pair.effect, "paired seeds": pair.num_seeds}
            row["exact"] = own[own["metric"] == "exact_match"]["value"].mean()
            row["items"] = scores["num_items"].iloc[0]
            row[PUBLISHED_COLUMN] = (
                published.value(source, metric="BLEU", method=PUBLISHED[phases], sparsity=phases[0])
                if phases in PUBLISHED
                else published.UNKNOWN
            )
            row["runs"] = " ".join(scores["run"])
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)
