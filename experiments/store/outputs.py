"""Texts that evaluations kept beside their scores, from a study's copies of its records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from experiments.specs.planned import PlannedStudy
from experiments.store import paths
from experiments.store.io import read_json


def written(study: PlannedStudy, runs: Iterable[str]) -> list[dict[str, Any]]:
    """The kept texts of some runs: ``run``, ``task`` and the keys of an output, in order.

    Args:
        study: the study.
        runs: ids; those without a record or without texts are left out.
    """
    folder, found = paths.study(study.scale, study.name) / "records", []
    for run in runs:
        if not (file := folder / f"{run}.json").is_file():
            continue
        for score in (read_json(file).get("evaluation") or {}).get("scores", []):
            for output in score.get("outputs", []):
                found.append({"run": run, "task": score["task"], **output})
    return found
