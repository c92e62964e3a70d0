"""Datasets by hub id, read from a mirror folder, or from the hub where allowed.

A mirror holds `<root>/<hub id>/` with parquet files and a README.md that declares the configs,
which is how `datasets.load_dataset` reads a local folder. A new dataset is one line in `DATASETS`.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from yaml import YAMLError

from experiments.data.base import SPLITS, Dataset, MissingData, Source, Texts


def _one_row_each(rows: list[str]) -> list[str]:
    return [row.strip() for row in rows if row.strip()]


def _wikitext_articles(rows: list[str]) -> list[str]:
    """Join the rows (lines) of WikiText into articles: each starts at a heading ` = Title = `."""
    articles: list[list[str]] = [[]]
    for position, row in enumerate(rows):
        if _is_title(row) and all(not rows[i].strip() for i in _neighbours(position, len(rows))):
            articles.append([])
        articles[-1].append(row.strip("\n"))
    return _one_row_each(["\n".join(article) for article in articles])


def _is_title(row: str) -> bool:
    text = row.strip()
    return text.startswith("= ") and text.endswith(" =") and not text.startswith("= =")


def _neighbours(position: int, num_rows: int) -> list[int]:
    """Rows before and after: blank around a heading, unlike around a formula that looks so."""
    return [i for i in (position - 1, position + 1) if 0 <= i < num_rows]


def hub_dataset(
    name: str,
    hub_id: str,
    *,
    config: str | None = None,
    license: str,
    to_documents: Callable[[list[str]], list[str]] = _one_row_each,
    column: str = "text",
    splits: str = "as published",
) -> Dataset:
    """Describe a text dataset by its hub id.

    Args:
        name: Name used in studies.
        hub_id: "<owner>/<name>" on the hub and below the mirror root.
        config: Config (subset) of the dataset.
        license: Licence as published.
        to_documents: Turns the rows of a split into documents.
        column: Column that holds the text.
        splits: How the splits were made, in words.
    """

    def missing(source: Source) -> str | None:
        return missing_rows(name, hub_id, config, source)

    def read(source: Source) -> Texts:
        rows = load_rows(name, hub_id, config, [column], source)
        documents = {split: to_documents(rows[split][column]) for split in SPLITS}
        return Texts(documents, {"hub_id": hub_id, "config": config})

    return Dataset(
        name=name,
        license=license,
        source=f"{hub_id} ({config})" if config else hub_id,
        splits=splits,
        read=read,
        missing=missing,
    )


def missing_rows(
    name: str,
    hub_id: str,
    config: str | None,
    source: Source,
    splits: Sequence[str] = SPLITS,
) -> str | None:
    """Say in one sentence what of a dataset is not mirrored; None if nothing."""
    folder = source.mirror / hub_id if source.mirror else None
    if folder is not None and any(folder.glob("**/*.parquet")):
        declared = declared_splits(folder / "README.md", config)
        absent = [split for split in splits if declared is not None and split not in declared]
        if not absent:
            return None
        return (
            f"{name} needs the {' and '.join(absent)} split of {hub_id}"
            f"{f' ({config})' if config else ''}, which {folder} lacks: complete that folder or "
            "unset the mirror and allow the hub with --config offline=false."
        )
    return _not_mirrored(name, hub_id, "parquet files and README.md", source)


def missing_tokenizer(hub_id: str, source: Source) -> str | None:
    """Say in one sentence that a published tokenizer is not mirrored; None if it is."""
    if source.mirror is not None and (source.mirror / hub_id).is_dir():
        return None
    return _not_mirrored("data.tokenizer", hub_id, "tokenizer files", source)


def _not_mirrored(name: str, hub_id: str, files: str, source: Source) -> str:
    return (
        f"{name} needs {hub_id}, which is not mirrored: put its {files} into "
        f"{source.mirror / hub_id if source.mirror else f'<mirror>/{hub_id}'}, name the mirror "
        f"root by config key 'mirror' or variable SPARSE_MIRROR, or allow the hub with "
        f"--config offline=false."
    )


def declared_splits(readme: Path, config: str | None) -> list[str] | None:
    """Splits of a config that a README's YAML header declares; None if it declares no configs."""
    header = readme.read_text().split("---\n") if readme.is_file() else []
    try:
        configs = (yaml.safe_load(header[1]) or {}).get("configs") if len(header) > 2 else None
        for entry in configs or ():
            files = entry.get("data_files")
            if entry["config_name"] == (config or "default") and isinstance(files, list):
                return [file["split"] for file in files]
    except (YAMLError, AttributeError, KeyError, TypeError):
        return None  # reading the data says what is wrong
    return [] if config and configs else None


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
        MissingData: If the dataset cannot be had, is damaged, or lacks a split or a column.
    """
    problem = missing_rows(name, hub_id, config, source, splits)
    if problem and (source.offline or (source.mirror and (source.mirror / hub_id).is_dir())):
        raise MissingData(problem)
    from datasets import load_dataset

    path = str(Path(source.mirror or "") / hub_id) if problem is None else hub_id
    # `datasets` keys its cache of a local folder by the README's header, not by the data: a
    # throw-away cache cannot be stale.
    with reading(name, path), tempfile.TemporaryDirectory() as scratch:
        loaded = load_dataset(path, config, cache_dir=scratch if problem is None else None)
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
    from datasets.exceptions import DatasetsError
    from pyarrow import ArrowException

    try:
        yield
    except (
        OSError, ValueError, KeyError, AttributeError, SyntaxError, YAMLError, DatasetsError,
        ArrowException,
    ) as error:  # fmt: skip
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = "there is no " * isinstance(cause, KeyError) + str(cause).strip().split("\n")[0]
        raise MissingData(f"{name}: {path} cannot be read: {reason}") from error


_WIKIPEDIA = "CC BY-SA 3.0 and GFDL"

DATASETS = (
    hub_dataset(
        "wikitext-2",
        "Salesforce/wikitext",
        config="wikitext-2-v1",
        license=_WIKIPEDIA,
        to_documents=_wikitext_articles,
    ),
    hub_dataset(
        "wikitext-103",
        "Salesforce/wikitext",
        config="wikitext-103-v1",
        license=_WIKIPEDIA,
        to_documents=_wikitext_articles,
    ),
    hub_dataset("enwiki-slice", "local/enwiki-2014-slice", license=_WIKIPEDIA),
    hub_dataset(
        "slimpajama",
        "cerebras/SlimPajama-627B",
        license="that of each source; see the data card",
    ),
)
