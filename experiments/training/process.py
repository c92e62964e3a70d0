"""The process of a training: its printed lines, the signals that end it, the lock of a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from experiments.errors import CannotWrite


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


class Interrupted(SystemExit):
    """Raised between two steps after a signal; the state has been saved."""


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of dying in the middle of a step."""
    received: list[int] = []
    old = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def locked(
    name: str, state_dir: Path, received: list[int], log: Path | None, held: ExitStack
) -> bool:
    """Take the lock of a run until ``held`` closes; whether it was free at once.

    Args:
        received: signals, of which any ends the wait.
        held: what the lock is released with.

    Raises:
        Interrupted: after a signal.
    """
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.with_name(f"{state_dir.name}.lock").touch()
    except OSError as error:
        raise CannotWrite(f"{state_dir.parent} cannot be written: {error.strerror}") from None
    lock = FileLock(state_dir.with_name(f"{state_dir.name}.lock"))
    waited = False
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            if received:
                raise Interrupted(128 + received[0]) from None
            if not waited:
                say(f"{name}  another trainer has this run; waiting for it", log)
            waited = True
    held.callback(lock.release)
    return not waited
