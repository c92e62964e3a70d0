"""Which files were made from what, so that only what changed is made again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Made:
    """A note of products: the key of what each was made from, and the digests of its files.

    Args:
        path: The note; one that cannot be read counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            notes = json.loads(path.read_text())
        except (OSError, ValueError):
            notes = {}
        self.notes: dict[str, Any] = notes if isinstance(notes, dict) else {}

    def make(self, key: str, files: Callable[[], Iterable[Path]], write: Callable[[], Any]) -> bool:
        """Write a product, unless its files are those that were written from the same key.

        Files that stay get the present time, so that a workflow sees them as up to date.

        Args:
            key: Digest of everything that the product depends on.
            files: Finds the product's files; the first one names it.
            write: Writes them.

        Returns:
            Whether it was written.
        """
        found = {path.as_posix(): file_digest(path) for path in files() if path.is_file()}
        note = {"key": key, "files": found}
        if found and self.notes.get(next(iter(found))) == note:
            for name in found:
                os.utime(name)
            return False
        for name in found:
            Path(name).unlink()
        write()
        found = {path.as_posix(): file_digest(path) for path in files() if path.is_file()}
        if found:
            self.notes[next(iter(found))] = {"key": key, "files": found}
        self.path.write_text(json.dumps(self.notes, indent=1, sort_keys=True) + "\n")
        return True
