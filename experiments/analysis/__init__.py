"""Analysis of finished runs: tables and figures, each a file that is found by its name.

Nothing here imports torch: every input is a JSON, JSONL or CSV file that a run wrote.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from experiments.errors import added
from experiments.specs.schema import module_names

if TYPE_CHECKING:
    import pandas as pd

    from experiments.specs.schema import PlannedStudy


class Files:
    """The modules of a folder here, by name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """The names of all."""
        return module_names(Path(__file__).parent / self.folder)

    def load(self, name: str) -> ModuleType:
        """The module of a name; raises `UserError` where it is broken."""
        return added(f"{__name__}.{self.folder}.{name}")

    def caption(self, name: str) -> str:
        """The docstring of a module on one line."""
        return " ".join((self.load(name).__doc__ or "").split())

    def shown(self, name: str, records: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
        """The records that a module reads: of the headline runs, unless it reads all."""
        from experiments.store import tidy

        every = getattr(self.load(name), "EVERY_RECIPE", False)
        return records if every else tidy.headline(records, study)
