"""Results that need no training: one file each, named by the studies that show them.

A computation's file has a docstring and ``compute(scale) -> dict[str, pandas.DataFrame]``: its
tables by name (lower-case words joined by underscores). It is made again when its file, or a file
of this repository that it imports, changes; ``import sparse_lib as sl`` does not say which of the
library's files are used, so import from those (``from sparse_lib.flops import count``). Tables,
figures and findings read the result with `experiments.store.tidy.computed`.
"""

import shutil
from pathlib import Path

from experiments.errors import added
from experiments.store import paths


def write(name: str, scale: str, folder: Path) -> None:
    """Compute, and replace the folder by one CSV file for each table."""
    tables = added(f"{__name__}.{name}", "compute").compute(scale)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for table, rows in tables.items():
        rows.to_csv(folder / f"{table}.csv", index=False)


def take_committed(name: str, folder: Path) -> bool:
    """Replace the folder by the committed tables of a computation, if there are any.

    Times measured here and now would stand beside records from elsewhere.
    """
    committed = paths.REFERENCE / name
    if not committed.is_dir():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(committed, folder)
    return True
