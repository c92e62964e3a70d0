"""Files of a prepared dataset: written as wholes, listed with their digests, and verified."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.data.base import SPLITS, MissingData
from experiments.digest import file_digest
from experiments.errors import UserError

META, LIST = "meta.json", "files.json"
#: Files up to so many bytes are hashed as a whole, larger ones in blocks spread over them.
WHOLE = 64 * 2**20
BLOCK, NUM_BLOCKS = 2**20, 64


def seal(folder: Path, meta: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Write `meta.json`, and the list of all files by which `verify` checks them."""
    partial = folder / f"{META}.partial"
    partial.write_text(json.dumps(meta, indent=2) + "\n")
    listed = {path.relative_to(folder).as_posix(): _describe(path) for path in sorted(files)}
    text = json.dumps({**listed, META: _describe(partial)}, indent=2) + "\n"
    (folder / LIST).write_text(text)
    os.replace(partial, folder / META)


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of a prepared dataset's `meta.json`.

    Raises:
        MissingData: If the folder holds no prepared dataset.
        UserError: If the file is damaged.
    """
    path = folder / META
    if not path.is_file():
        raise MissingData(f"{folder} holds no prepared dataset: run `snakemake {path}` first.")
    meta = _read_json(path)
    if not {"name", "hash"} <= meta.keys():
        raise UserError(f"{path} names no dataset and hash; {_remedy(path.parent)}")
    return meta


def verify(folder: Path) -> None:
    """Check the files of a prepared dataset by size and digest.

    Of files above 64 MiB only some blocks are read.

    Raises:
        MissingData: If the folder holds no prepared dataset.
        UserError: If a file is missing, cut short or changed; the message names it.
    """
    read_meta(folder)
    for name, expected in {META: {}, **_read_json(folder / LIST)}.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; {_remedy(folder)}")
        size = path.stat().st_size
        if size != expected.get("bytes"):
            raise UserError(
                f"{path} has {size} bytes instead of {expected.get('bytes')}; {_remedy(folder)}"
            )
        if _digest(path, size) != expected.get("blake2b"):
            raise UserError(f"{path} is not as it was prepared; {_remedy(folder)}")


def hashed_files(folder: Path, meta: Mapping[str, Any]) -> list[Path]:
    """Files that decide a training, in the order in which `meta.json` hashes them."""
    if meta.get("kind") == "images":
        found = meta["num_images"]
        return [folder / f"{split}.{part}.npy" for split in found for part in ("pixels", "labels")]
    return [*(folder / f"{split}.bin" for split in SPLITS), folder / "tokenizer" / "tokenizer.json"]


def files_digest(paths: Sequence[Path]) -> str:
    """One SHA-256 over the names and contents of files, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def _describe(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size, "blake2b": _digest(path, size)}


def _digest(path: Path, size: int) -> str:
    """BLAKE2b of a file, or of evenly spaced blocks of a large one, its ends included."""
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        digest = hashlib.blake2b(digest_size=16)
        for index in range(NUM_BLOCKS):
            file.seek((size - BLOCK) * index // (NUM_BLOCKS - 1))
            digest.update(file.read(BLOCK))
        return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not all(
        isinstance(entry, dict) for entry in content.values() if path.name == LIST
    ):
        raise UserError(f"{path} is damaged; {_remedy(path.parent)}")
    return content


def _remedy(folder: Path) -> str:
    return f"delete {folder} and prepare it again with `snakemake {folder / META}`"
