"""Lines that a training prints."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def say(line: str, log: Path | None) -> None:
    """Print a line and append it to the log.

    Neither a closed terminal nor a full disk may end a training.
    """
    if log is not None:
        try:
            with log.open("a") as stream:
                stream.write(line + "\n")
        except OSError as error:
            line += f"  (the log {log} cannot be written: {error.strerror})"
    with suppress(OSError):
        print(line, flush=True)
