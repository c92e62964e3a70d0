"""Files of an evaluation: hashed, read in part or not at all, replaced as a whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.data.base import MissingData
from experiments.evaluation.suite import digest


def weights_hash(model_dir: Path) -> str:
    """SHA-256 over a model folder's weights and all that tells how to read them.

    Raises:
        ValueError: if the folder holds no config.json or no weights.
    """
    weights = [*model_dir.glob("*.safetensors"), *model_dir.glob("*.bin")]
    if not weights or not (model_dir / "config.json").is_file():
        raise ValueError(f"{model_dir} holds no config.json with weights; export the model there")
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's content; nothing if it is missing or was cut short."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file.

    Raises:
        MissingData: if there is no such file.
    """
    if not path.is_file():
        raise MissingData(f"{path} does not exist; prepare the dataset first")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)
