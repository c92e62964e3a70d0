"""Rows of a prepared dataset as lm-eval's data; our own task files name `rows`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from experiments.evaluation.files import NoRows, prepared_rows


def rows(
    data_dir: str,
    file: str,
    split: str = "test",
    make: Callable[[list[str]], list[dict[str, str]]] | None = None,
    **_: Any,
) -> DatasetDict:
    """Rows of one file, mixed by hash: the first ones are a fair sample of all kinds.

    Args:
        make: makes the rows of a task from the texts of the file.
    """
    found = prepared_rows(Path(data_dir) / file)
    if make is not None:
        found = make([row["text"] for row in found])
    if not found:
        raise NoRows(f"{Path(data_dir) / file} has no row for it; name a suite without it")
    found.sort(key=lambda row: hashlib.sha256(str(next(iter(row.values()))).encode()).digest())
    return DatasetDict({split: Dataset.from_list(found)})
