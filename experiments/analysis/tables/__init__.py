"""Tables, one file each; a study names the files it shows.

A table module has a docstring (its caption) and ``make(records, curves, study) -> DataFrame``.
Conventions that the report understands: a column ``runs`` holds the ids of the runs behind a
row, separated by spaces; a column whose name ends in ``(published)`` holds the source's value.
Records hold the study's headline runs only, unless the module sets ``EVERY_RECIPE = True``.
"""

import importlib
from pathlib import Path
from types import ModuleType

import pandas as pd

from experiments.analysis import select as selection
from experiments.errors import UserError, not_one_of
from experiments.specs.planned import PlannedStudy
from experiments.specs.schema import module_names


def names() -> list[str]:
    """Return the names of all tables."""
    return module_names(Path(__file__).parent)


def load(name: str) -> ModuleType:
    """Return the module of one table."""
    if name not in names():
        raise UserError(not_one_of("table", name, names(), "experiments/analysis/tables"))
    return importlib.import_module(f"{__name__}.{name}")


def caption(name: str) -> str:
    """Return a table's docstring on one line."""
    return " ".join((load(name).__doc__ or "").split())


def write(
    name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy, out_dir: Path
) -> Path:
    """Write one table as CSV, and return its path."""
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / f"{name}.csv"
    module = load(name)
    if not getattr(module, "EVERY_RECIPE", False):
        records = selection.headline(records, study)
    module.make(records, curves, study).to_csv(path, index=False)
    return path
