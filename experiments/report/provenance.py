"""Which runs stand behind a row of a page, and the one command that repeats them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.methods import Methods
from experiments.specs.lookup import rerun_command
from experiments.specs.planned import PlannedStudy

COLUMNS = ["study", "table", "line", "row", "command"]


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


def row_name(row: dict[str, Any], methods: Methods) -> str:
    """Return what tells a row from the table's others: its first texts, and its sparsity."""
    words = []
    for column, value in row.items():
        if column == "method" and isinstance(value, str):
            sparsity = row.get("sparsity", 0.0)
            words.append(methods.treatment(value, sparsity if sparsity == sparsity else 0.0))
        elif isinstance(value, str):
            words.append(value)
        elif column != "sparsity":
            break
    return ", ".join(words)


def commands(study: PlannedStudy, tables_dir: Path) -> pd.DataFrame:
    """Return the command behind each row of a study's tables.

    Returns:
        One row per table row; the columns are ``COLUMNS``. All cells of a row have the same runs.
        Where no run stands behind a row its name is empty, and the command makes the tables again.
        Tables with a column ``command`` name theirs themselves and are left out.
    """
    rule = "compute" if study.computations else "table"
    chosen = f"--config scale={study.scale} study={study.name}"
    remake = f"snakemake reproduce --forcerun {rule} {chosen}"
    runs, rows = Runs(study), []
    for name in study.tables:
        path = tables_dir / f"{name}.csv"
        table = pd.read_csv(path).to_dict("records") if has_rows(path) else []
        for line, row in enumerate(table, start=1):
            if "command" in row:
                continue
            ids = runs.of(row.get("runs", row.get("run")))
            words = (row_name(row, runs.methods), rerun_command(ids)) if ids else ("", remake)
            rows.append((study.name, name, line, *words))
    return pd.DataFrame(rows, columns=COLUMNS)


def has_rows(path: Path) -> bool:
    """Return whether a table has been made and has a header."""
    return path.exists() and path.stat().st_size > 2
