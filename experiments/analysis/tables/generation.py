"""Writing sentences from facts after fine-tuning: BLEU (sacrebleu, 0 to 100) and the share of
sentences that are right word for word; means over seeds, with the 95% t interval of BLEU, cut at 0
and 100, and the mean difference to dense pre-training over the seeds that both have."""

from typing import Any

import numpy as np
import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.store import records as tidy

PUBLISHED_COLUMN = "BLEU (published, GPT-2 Small on E2E)"
TASKS = ("facts_to_text", "data_to_text")
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "BLEU", "low", "high"]
COLUMNS += ["minus dense", "paired seeds", "exact", "items", PUBLISHED_COLUMN, "runs"]
BASELINE = "dense-dense"
#: Rows of the source's Table 1 and Figure 2 (E2E, GPT-2 Small) that stand beside ours.
PUBLISHED = {
    "dense-dense": ("dense pre-train + dense fine-tune", 0.0),
    "spdf-50": ("static sparse pre-train (Pile) + dense fine-tune", 0.5),
    "spdf-75": ("static sparse pre-train (Pile) + dense fine-tune", 0.75),
    "sparse-50": ("static sparse pre-train + SPARSE fine-tune", 0.5),
    "sparse-75": ("static sparse pre-train + SPARSE fine-tune", 0.75),
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    values = records[records["task"].isin(TASKS) & records["value"].notna()]
    source = published.source_id(study)
    rows = []
    for cell in tidy.cells(values):
        chosen = tidy.in_cell(values, cell)
        bleu = chosen[chosen["metric"] == "bleu"]
        baseline = tidy.by_seed(bleu[bleu["method"] == BASELINE])
        for method, sparsity in tidy.treatments(bleu):
            own = chosen[(chosen["method"] == method) & (chosen["sparsity"] == sparsity)]
            scores = own[own["metric"] == "bleu"]
            mean, low, high = stats.t_interval(scores["value"])
            low, high = np.clip((low, high), 0, 100)
            start = (*cell, method, sparsity, len(scores), mean, low, high)
            row: dict[str, Any] = dict(zip(COLUMNS, start, strict=False))
            pair = stats.paired(tidy.by_seed(scores), baseline)
            if method != BASELINE and pair.num_seeds:
                row |= {"minus dense": pair.effect, "paired seeds": pair.num_seeds}
            row["exact"] = own[own["metric"] == "exact_match"]["value"].mean()
            row["items"] = scores["num_items"].iloc[0]
            name, level = PUBLISHED.get(method, ("", None))
            row[PUBLISHED_COLUMN] = (
                published.value(source, metric="BLEU", method=name, sparsity=level)
                if name
                else published.UNKNOWN
            )
            row["runs"] = " ".join(scores["run"])
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)
