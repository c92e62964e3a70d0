"""Scores of an evaluation as tidy rows, with means over its tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from experiments.store.record import Record, Score

ACCURACY_METRICS = ("acc", "acc_norm", "accuracy", "pair_accuracy", "exact_match")
#: Tasks of the Open LLM Leaderboard v1 without GSM8K, each with the metric that its average takes.
LEADERBOARD = {
    "arc_challenge": "acc_norm",
    "hellaswag": "acc_norm",
    "mmlu": "acc",
    "truthfulqa_mc2": "acc",
    "winogrande": "acc",
}


def evaluation_rows(record: Record) -> list[dict[str, Any]]:
    """Scores of a record, and means over its tasks with a known chance level.

    One mean over the Open LLM Leaderboard's tasks where all of them were scored, one over the rest.
    """
    if record.evaluation is None:
        return []
    rows = [score.model_dump(include={*Score.model_fields}) for score in record.evaluation.scores]
    accuracies = [
        row
        for row in rows  # a metric's name may have a filter: "acc,none"
        if row["metric"].split(",")[0] in ACCURACY_METRICS and row["value"] is not None
    ]
    whole = whole_tasks(row["task"] for row in accuracies)
    by_task: dict[str, dict[str, Any]] = {}
    for row in accuracies:
        if row["task"] in whole and row["chance"] is not None:
            wanted = LEADERBOARD.get(row["task"], row["metric"])
            if row["metric"] == wanted:
                by_task.setdefault(row["task"], row)
    ours = [row for task, row in by_task.items() if task not in LEADERBOARD]
    theirs = [row for task, row in by_task.items() if task in LEADERBOARD]
    if ours:
        rows.append({"task": "average", "metric": "accuracy_mean", **average(ours)})
    if len(theirs) == len(LEADERBOARD):
        rows.append({"task": "leaderboard", "metric": "leaderboard_mean", **average(theirs)})
    return rows


def whole_tasks(names: Iterable[str]) -> set[str]:
    """Return the names without parts of a group: ``blimp`` stands for ``blimp_wh_island``."""
    names = set(names)
    return {
        name
        for name in names
        if not any(name != group and name.startswith(f"{group}_") for group in names)
    }


def average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Unweighted mean over tasks; the tasks' items are independent, so variances add."""
    errors = [row["stderr"] for row in rows]
    chances = [row["chance"] for row in rows]
    cut = [row.get("truncated_fraction") for row in rows]
    count = len(rows)
    return {
        "value": float(np.mean([float(row["value"]) for row in rows])),
        "stderr": None if None in errors else float(np.sqrt(np.sum(np.square(errors))) / count),
        "chance": None if None in chances else float(np.mean(chances)),
        "truncated_fraction": None if None in cut else float(np.mean(np.array(cut, float))),
        "num_items": int(sum(row["num_items"] or 0 for row in rows)),
        "higher_is_better": True,
    }
