"""Datasets by hub id, read from a folder of this machine, or from the hub where allowed.

`experiments.data.mirror` says where such a folder lies and what it holds. Each dataset is declared
in a file of its own, such as `wikitext.py`.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from experiments.data.base import SPLITS, Dataset, MissingData, Source, Texts
from experiments.data.mirror import folder_of, load, missing_rows
from experiments.errors import UserError, reason


def one_row_each(rows: list[str]) -> list[str]:
    """Rows without the space around them, empty ones left out."""
    return [row.strip() for row in rows if row.strip()]


def hub_dataset(
    name: str,
    hub_id: str,
    *,
    config: str | None = None,
    license: str,
    to_documents: Callable[[list[str]], list[str]] = one_row_each,
) -> Dataset:
    """Describe a text dataset by its hub id.

    Args:
        hub_id: "<owner>/<name>" on the hub and below the mirror root.
        to_documents: Turns the rows of a split into documents.
    """

    def read(source: Source) -> Texts:
        rows = load_rows(name, hub_id, config, ["text"], source)
        documents = {split: to_documents(rows[split]["text"]) for split in SPLITS}
        return Texts(documents, {"hub_id": hub_id, "config": config})

    return Dataset(
        name=name,
        license=license,
        source=f"{hub_id} ({config})" if config else hub_id,
        splits="as published",
        read=read,
        missing=partial(missing_rows, name, hub_id, config),
        fetch=partial(fetch, hub_id, config),
    )


def fetch(hub_id: str, config: str | None = None) -> str:
    """Download a dataset's files into the hub's cache; returns their folder.

    Args:
        config: Config (subset), whose folder alone is fetched where there is one.

    Raises:
        MissingData: If the hub cannot be asked or does not have it.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        files = HfApi().list_repo_files(hub_id, repo_type="dataset")
        own = any(file.startswith(f"{config}/") for file in files)
        patterns = ["README.md", f"{config}/*"] if own else None
        return snapshot_download(hub_id, repo_type="dataset", allow_patterns=patterns)
    except Exception as error:  # those of the hub's HTTP client have no common base
        raise MissingData(f"{hub_id} cannot be fetched from the hub: {reason(error)}") from error


def load_rows(
    name: str,
    hub_id: str,
    config: str | None,
    columns: Sequence[str],
    source: Source,
    splits: Sequence[str] = SPLITS,
) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of each split.

    Raises:
        MissingData: If the dataset is not on this machine and the hub must not be asked, a folder
            of it is incomplete or damaged, or it lacks a split or a column.
    """
    problem, folder = missing_rows(name, hub_id, config, source), folder_of(hub_id, source)
    if problem and (source.offline or (source.mirror and (source.mirror / hub_id).is_dir())):
        raise MissingData(problem)
    path = str(hub_id if problem else folder)
    # `datasets` keys its cache of a local folder by the README's header, not by the data: a
    # throw-away cache cannot be stale.
    with reading(name, path), tempfile.TemporaryDirectory() as scratch:
        if problem or folder is None:
            from datasets import load_dataset

            loaded = load_dataset(hub_id, config)
        else:
            loaded = load(folder, config, cache_dir=scratch)
        for split in splits:
            if split not in loaded:
                raise MissingData(f"{name}: {path} has no {split} split.")
            for column in columns:
                if column not in loaded[split].column_names:
                    known = ", ".join(loaded[split].column_names)
                    raise MissingData(f"{name}: {path} has no column {column!r}, but {known}.")
        return {split: {name: list(loaded[split][name]) for name in columns} for split in splits}


@contextmanager
def reading(name: str, path: str) -> Iterator[None]:
    """Turn what fails while a dataset's files are read into one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # those of datasets, pyarrow and Pillow have no common base
        raise MissingData(f"{name}: {path} cannot be read: {reason(error)}") from error
