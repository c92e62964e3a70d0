"""Texts that models wrote for the first inputs of the test split, beside the input and texts that
people wrote. Shown are the dense model and the sparsest, or dense and sparsest pre-training, for
the first seed.
"""

from typing import Any

import pandas as pd

from experiments.analysis.methods import Methods
from experiments.specs.schema import PlannedStudy
from experiments.store import results, tidy

COLUMNS = ["model", "dataset", "method", "input", "output", "references", "more references", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Ten rows per model and dataset for each of the two methods."""
    looks = Methods(study)
    bleu = records[(records["task"] == "data_to_text") & (records["metric"] == "bleu")]
    rows = []
    for workload in tidy.workloads(bleu):
        own = tidy.in_workload(bleu, workload)
        levels = {}
        for key in own["method"].unique():
            level, kind = looks.phases(key) or (looks[key].sparsity, "dense")
            if kind == "dense":
                levels[key] = level
        ends = {levels[key]: key for key in reversed(levels)}  # of one level, the first method
        for method in (ends[level] for level in sorted({min(ends), max(ends)} if ends else ())):
            first = own[own["method"] == method].sort_values("seed")["run"].iloc[0]
            for text in _written(study, first):
                known = text["references"]
                more = text["num_references"] - len(known)
                cells = (text["input"], text["output"], " / ".join(known), more, first)
                rows.append(dict(zip(COLUMNS, (*workload, method, *cells), strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def _written(study: PlannedStudy, run: str) -> list[dict[str, Any]]:
    """The texts that the evaluation of a run kept, in order."""
    scores = [
        score
        for record in results.collected(study.scale, study.name, [run])
        for score in (record["evaluation"] or {}).get("scores", [])
    ]
    return [text for score in scores for text in score.get("outputs", [])]
