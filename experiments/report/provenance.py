"""Which runs stand behind a row of a page."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy


class Runs:
    """The runs of a study by id: what people read of them, and in which order."""

    def __init__(self, study: PlannedStudy, records: pd.DataFrame | None = None) -> None:
        self.methods = Methods(study)
        has_facts = records is not None and "committed" in records
        rows = records[records["committed"] == True] if has_facts else None  # noqa: E712
        #: Runs whose record is a committed one.
        self.committed = set() if rows is None else set(rows["run"])
        self._specs = {run.id: run.spec for run in study.runs}

    def name(self, run: str) -> str:
        """Return model, treatment, data and recipe of a run; its id where the study lacks it."""
        if run not in self._specs:
            return run
        spec = self._specs[run]
        treatment = self.methods.treatment(spec.method or "", spec.final_sparsity or 0.0)
        parts = spec.model.label, treatment, spec.data.name, spec.recipe.name
        return " · ".join(part for part in parts if part)

    def seed(self, run: str) -> int | str:
        """Return the seed of a run; its id where the study lacks it."""
        return self._specs[run].seed if run in self._specs else run

    def of(self, cell: Any) -> tuple[str, ...]:
        """Return the run ids in a cell of the column ``runs``: each once, by name and seed."""
        if not isinstance(cell, str):
            return ()
        return tuple(sorted(set(cell.split()), key=lambda run: (self.name(run), self.seed(run))))

    def members(self, ids: Iterable[str]) -> dict[str, list[int | str]]:
        """Return the names of some runs, each with the seeds of that name."""
        found: dict[str, list[int | str]] = {}
        for run in ids:
            found.setdefault(self.name(run), []).append(self.seed(run))
        return found


def has_rows(path: Path) -> bool:
    """Return whether a table has been made and has a header."""
    return path.exists() and path.stat().st_size > 2
