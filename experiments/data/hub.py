"""Datasets by hub id, read from a folder of this machine, or from the hub where allowed.

Looked at are, in this order, `<mirror>/<hub id>`, a hub cache that is named as the mirror, and the
hub's own cache (`HF_HUB_CACHE`, else `HF_HOME/hub`, else `~/.cache/huggingface/hub`). A folder
holds what `datasets` reads: parquet or JSON Lines files, or what `save_to_disk` wrote, in the
folder itself or in one named after the config. Each dataset is declared in a file of its own, such
as `wikitext.py`.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from experiments.data.base import SPLITS, Dataset, MissingData, Source, Texts
from experiments.errors import UserError, reason

#: Suffixes of data files.
SUFFIXES = (".parquet", ".jsonl", ".json", ".arrow")


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
    """The columns of each split.

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


def folder_of(hub_id: str, source: Source) -> Path | None:
    """Folder of a dataset on this machine."""
    roots = [] if source.mirror is None else [source.mirror, source.mirror / "hub"]
    if source.mirror is not None and (source.mirror / hub_id).is_dir():
        return source.mirror / hub_id
    # As `huggingface_hub` names the folder of what it fetched; it takes long to import.
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    for root in (*roots, cache):
        repository = root / f"datasets--{hub_id.replace('/', '--')}"
        try:
            revision = (repository / "refs" / "main").read_text("utf-8").strip()
        except OSError:
            continue
        if (snapshot := repository / "snapshots" / revision).is_dir():
            return snapshot
    return None


def holds(folder: Path, config: str | None) -> bool:
    """Whether a folder has data files, of this config where its README.md names configs."""
    names = configs(folder)
    files = (path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return (config is None or not names or config in names) and any(files)


def configs(folder: Path) -> list[str]:
    """The configs whose files a folder's README.md names."""
    readme = folder / "README.md"
    text = readme.read_text("utf-8", errors="replace") if readme.is_file() else ""
    named = re.split(r"^configs:", text, flags=re.MULTILINE)[1:]
    return re.findall(r"^[ -]*config_name: *['\"]?([^'\"\s]+)", "".join(named), re.MULTILINE)


def load(folder: Path, config: str | None, **options: Any) -> Any:
    """Read a folder by `datasets`; ``options`` are those of ``load_dataset``."""
    from datasets import load_dataset, load_from_disk

    own = folder / config if config and (folder / config).is_dir() else folder
    if (own / "dataset_dict.json").is_file():
        return load_from_disk(str(own))
    if configs(folder):
        return load_dataset(str(folder), config, **options)
    return load_dataset(str(own), **options)


def missing_rows(name: str, hub_id: str, config: str | None, source: Source) -> str | None:
    """Say in one sentence what of a dataset is not on this machine; None if nothing."""
    folder = folder_of(hub_id, source)
    if folder is not None and holds(folder, config):
        return None
    what = f"{hub_id} ({config})" if config else hub_id
    fetch = f"`python -m experiments prepare --data {name}` fetches it where there is a network"
    if folder is not None:
        return (
            f"{name} needs {what}, of which {folder} holds no parquet or JSON Lines files and "
            f"nothing that save_to_disk wrote: complete that folder, or {fetch}"
        )
    place = source.mirror / hub_id if source.mirror else f"<mirror>/{hub_id}"
    return (
        f"{name} needs {what}, which is not mirrored and not in the hub's cache: {fetch}; or put "
        f"its files into {place} and name the mirror's root by config key 'mirror' or variable "
        "SPARSE_MIRROR"
    )
