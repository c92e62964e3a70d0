"""Files that an evaluation reads: their hashes and their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.data.base import MissingData
from experiments.errors import UserError
from experiments.specs.digest import digest
from experiments.store.io import read_jsonl


def weights_hash(model_dir: Path) -> str:
    """SHA-256 over a model folder's weights and all that tells how to read them.

    Raises:
        ValueError: if the folder holds no config.json or no weights.
    """
    weights = [*model_dir.glob("*.safetensors"), *model_dir.glob("*.bin")]
    if not weights or not (model_dir / "config.json").is_file():
        raise UserError(f"{model_dir} holds no config.json with weights; export the model there")
    return hash_files(model_dir, [*sorted(weights), *sorted(model_dir.glob("*.json"))])


def hash_files(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of the files that exist."""
    contents = {}
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                contents[path.relative_to(root).as_posix()] = hashlib.file_digest(
                    file, "sha256"
                ).hexdigest()
    return digest(contents)


def run_of(model_dir: Path) -> str:
    """Name of the run that exported a model."""
    return model_dir.resolve().parent.name if model_dir.name == "model" else model_dir.name


def prepared_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a prepared dataset's JSON Lines file.

    Raises:
        MissingData: if there is no such file.
    """
    if not path.is_file():
        raise MissingData(f"{path} does not exist; prepare the dataset first")
    return read_jsonl(path)
