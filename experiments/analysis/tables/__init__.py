"""Tables, one file each; a study names the files it shows.

A table module has a docstring (its caption) and ``make(records, curves, study) -> DataFrame``.
Conventions that the report understands: a column ``runs`` holds the ids of the runs behind a
row, separated by spaces; a column whose name ends in ``(published)`` holds the source's value.
Records hold the study's headline runs only, unless the module sets ``EVERY_RECIPE = True``.
"""

from pathlib import Path

import pandas as pd

from experiments.analysis import Files
from experiments.specs.schema import PlannedStudy

_FILES = Files("tables")
names, load, caption = _FILES.names, _FILES.load, _FILES.caption


def write(
    name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy, out_dir: Path
) -> None:
    """Write one table as CSV."""
    out_dir.mkdir(parents=True, exist_ok=True)
    table = load(name).make(_FILES.shown(name, records, study), curves, study)
    table.to_csv(out_dir / f"{name}.csv", index=False)
