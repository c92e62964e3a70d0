"""Scores of the lm-eval tasks: mean over seeds; the standard error is that of one run over its
test items, the same items for every run. A score whose mean lies within 1.96 standard errors of
guessing is not distinguishable from chance. "cut prompts" is the share of prompts that lost their
beginning because they did not fit the context: above zero, the score is not the task's own.
"choices alike" is the share of the items of which two choices have the same tokens, and "right
answer" says how often it has the same place: where it always has, choices that are alike are
decided by their order. A group of tasks stands for its parts, and counts as one task in a mean:
"leaderboard" is that over the tasks of the Open LLM Leaderboard v1 without GSM8K, "average" that
over the others."""

from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store.scores import MEAN_METRICS, is_accuracy, whole_tasks

COLUMNS = ["model", "dataset", "task", "metric", "method", "sparsity", "seeds", "score", "stderr"]
COLUMNS += [
    "items",
    "shots",
    "chance",
    "against chance",
    "cut prompts",
    "choices alike",
    "right answer",
    "score (published)",
    "runs",
]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, task, metric, method and sparsity."""
    accuracies = records["metric"].map(lambda m: is_accuracy(m) or m in MEAN_METRICS)
    scores = records[accuracies.astype(bool) & records["value"].notna()]
    scores = scores[scores["task"].isin(whole_tasks(scores["task"]))]
    keys = ["model", "dataset", "task", "metric", "method", "sparsity"]
    source, looks = published.source_id(study), Methods(study)
    rows = [
        _row(dict(zip(keys, key, strict=True)), group, source, looks)
        for key, group in scores.groupby(keys, sort=False)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    key: dict[str, Any], group: pd.DataFrame, source: str | None, looks: Methods
) -> dict[str, Any]:
    score, stderr = group["value"].mean(), group["stderr"].mean()
    chance = group["chance"].iloc[0]
    num_items = group["num_items"].iloc[0]
    return key | {
        "seeds": group["run"].nunique(),
        "score": score,
        "stderr": stderr,
        "items": num_items,
        "shots": group["num_fewshot"].iloc[0],
        "chance": chance,
        "against chance": stats.against_chance(score, stderr, chance, num_items=num_items),
        "cut prompts": group["truncated_fraction"].max(),
        "choices alike": group["alike_fraction"].max(),
        "right answer": _place(group["answer_place_fraction"].max()),
        "score (published)": _published(source, key, looks),
        "runs": " ".join(group["run"].drop_duplicates()),
    }


def _place(share: float) -> str:
    """Where the right choice stands, in words; nothing where it was not recorded."""
    if pd.isna(share):
        return ""
    return "always in one place" if share == 1 else f"{share:.0%} in one place"


def _published(source: str | None, key: dict[str, Any], looks: Methods) -> str:
    """The source's score of a task, or its average over the leaderboard's tasks."""
    method = looks.source_name(key["method"])
    if key["task"] != "leaderboard":
        return published.value(
            source, metric="few-shot accuracy", method=method, sparsity=key["sparsity"]
        )
    method = "Sparse Wide" if looks[key["method"]].family == "wide" else method
    return published.value(
        source, metric="average accuracy", method=method, sparsity=key["sparsity"]
    )
