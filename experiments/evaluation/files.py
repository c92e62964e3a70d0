"""Files that an evaluation reads: their hashes and their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments import machine
from experiments.data.base import MissingData
from experiments.digest import digest, file_digest
from experiments.errors import UserError
from experiments.store.io import read_cache, read_jsonl, write_json


def weights_hash(model_dir: Path) -> str:
    """SHA-256 over a model folder's weights and all that tells how to read them.

    Raises:
        UserError: if the folder holds no config.json or no weights.
    """
    weights = [*model_dir.glob("*.safetensors"), *model_dir.glob("*.bin")]
    if not weights or not (model_dir / "config.json").is_file():
        raise UserError(f"{model_dir} holds no config.json with weights; export the model there")
    return hash_files(model_dir, [*sorted(weights), *sorted(model_dir.glob("*.json"))])


def hash_files(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of the files that exist."""
    found = (path for path in paths if path.is_file())
    return digest({path.relative_to(root).as_posix(): file_digest(path) for path in found})


class NoRows(UserError):
    """A prepared dataset has nothing that a task could ask."""


def prepared_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a prepared dataset's JSON Lines file."""
    if not path.is_file():
        raise MissingData(f"{path} does not exist; prepare the dataset first")
    return read_jsonl(path)


def hub_digest(hub: str, mirror: Path | None) -> str:
    """Digest of a mirrored dataset's files, or a name for what the hub serves."""
    folder = None if mirror is None else mirror / hub
    if folder is None or not folder.is_dir():
        return f"hub:{hub}"
    return hash_files(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def scored_once(
    model_dir: Path,
    suite: str,
    hashes: dict[str, Any],
    score: Callable[[], list[dict[str, Any]]],
    *,
    out: Path,
    cache: Path | None,
) -> dict[str, Any]:
    """Write the scores of a model, made where the cache does not hold them.

    Args:
        hashes: of all that the scores depend on but the weights, by name.
        out: file to write, or the folder to write ``eval.json`` into.
        cache: folder of earlier results, one file per weights; None is ``out``'s folder.

    Returns:
        What was written: run, suite, hashes, machine, ``scores``, wall_s.
    """
    out = out if out.suffix == ".json" else out / "eval.json"
    hashes = {"weights_hash": weights_hash(model_dir), **hashes}
    key = digest([suite, hashes])
    store = (cache or out.parent) / f"scores-{hashes['weights_hash'][:16]}.json"
    known = read_cache(store)
    if key not in known or "scores" not in known[key]:
        began = time.perf_counter()
        scores = score()
        folder = model_dir.resolve().parent if model_dir.name == "model" else model_dir
        known[key] = {
            "run": folder.name,
            "machine": machine.facts(),
            "suite": suite,
            **hashes,
            "scores": scores,
            "wall_s": round(time.perf_counter() - began, 3),
        }
        write_json(store, known)
    write_json(out, known[key])
    return known[key]
