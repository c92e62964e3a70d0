"""JSON in and out, and writes that a kill or a power cut leaves whole or undone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from experiments.errors import CannotWrite, UserError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: If it holds none; the message names the file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested without end
        value = None
    if not isinstance(value, dict):
        made = " (delete it, and the same command makes it again)" * (path.name == "record.json")
        raise UserError(f"{path} holds no JSON object{made}")
    return value


def read_cache(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file.

    Raises:
        UserError: If a line is no JSON; the message names the file and the line.
    """
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise UserError(f"{path.name}: line {number} is not JSON") from None
    return rows


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Write a file so that a reader sees all of it or none; ``options`` go to `json.dumps`."""
    write_whole(path, (json.dumps(value, indent=1, **options) + "\n").encode())


def write_whole(path: Path, content: bytes | Callable[[BinaryIO], Any]) -> None:
    """Replace a file, once all of its new content is on the disk.

    Args:
        content: Bytes, or a function that writes them into a stream.

    Raises:
        OSError: If there is no room, or no permission; the message names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            content(stream) if callable(content) else stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into the latter
        with suppress(OSError):
            part.unlink()
        reason = getattr(error, "strerror", None) or "the write failed"
        raise CannotWrite(f"{path} cannot be written: {reason}") from None
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Put renames in a folder on the disk, where the file system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
