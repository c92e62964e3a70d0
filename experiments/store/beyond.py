"""What a study's results depend on besides its own records and its plan."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.specs import trials
from experiments.specs.planned import PlannedStudy
from experiments.specs.run import RunSpec
from experiments.store import paths
from experiments.store.made import file_digest


def noise_records(model: str, dataset: str) -> list[Path]:
    """Return the committed records of a workload, from which the noise between seeds is read."""
    return sorted(paths.REFERENCE_RUNS.glob(f"*__{model}__*__{dataset}-*.json"))


@functools.cache
def _digest(path: Path, _stamp: int) -> str:
    return file_digest(path)


def _digests(files: Iterable[Path]) -> dict[str, str | None]:
    """Digests of committed records by name; None where there is none."""
    return {
        path.name: _digest(path, path.stat().st_mtime_ns) if path.is_file() else None
        for path in files
    }


def _noise(specs: Iterable[RunSpec]) -> dict[str, str | None]:
    """Digests of the records from which the noise between seeds of such runs is read."""
    pairs = dict.fromkeys((spec.model.label, spec.data.name) for spec in specs)
    return _digests(path for pair in pairs for path in noise_records(*pair))


def beyond(study: PlannedStudy) -> Any:
    """Return what a study's results depend on besides its own records, as JSON.

    The ledger names the rates that were tried for what the runs train. The page of trials shows the
    noise between seeds of committed runs, and what studies of evidence take.
    """
    tried = trials.tried(study.scale)
    places = dict.fromkeys(trials.place_of(run.spec) for run in study.runs)
    found: dict[str, Any] = {
        "tried": [
            [place, [[level, sorted(rates)] for level, rates in sorted(tried[place].items())]]
            for place in places
            if place in tried
        ]
    }
    if study.trials:
        found["noise"] = _noise(run.spec for run in study.runs)
        found["taken"] = trials.taken_by(study)
    return found
