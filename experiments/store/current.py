"""Whether a study's tables are still those of its runs."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable

from experiments.store import paths


def changed_runs(scale: str, study: str, runs: Iterable[str]) -> list[str]:
    """The runs of a study whose records are others than those in its tables.

    A run has a record of its own, which training replaces, or a committed one that stands for it.

    Args:
        scale: The scale.
        study: Name of the study; its folder holds copies of the records that were collected.
        runs: Ids of its runs.
    """
    kept, changed = paths.study(scale, study) / "records", []
    for run in runs:
        copy, own = kept / f"{run}.json", paths.run(scale, run) / "record.json"
        if copy.is_file():
            standing = [path for path in (own, paths.committed(run)) if path.is_file()]
            if not any(filecmp.cmp(copy, path) for path in standing):
                changed.append(run)
        elif own.is_file():
            changed.append(run)
    return changed
