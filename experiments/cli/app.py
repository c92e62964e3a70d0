"""`python -m experiments`: all commands, and how their errors end."""

from __future__ import annotations

import errno
import os
import sys

from experiments.cli import inspect, laws, report, train  # noqa: F401  they register their commands
from experiments.cli.options import app
from experiments.errors import UserError


def main() -> None:
    """Run a command; a user's mistake ends in one sentence, a bug in a traceback."""
    try:
        app()
    except (UserError, OSError) as error:
        if os.environ.get("SPARSE_DEBUG") or not explained(error):
            raise
        sys.exit(f"Error: {sentence(error)}")


def explained(error: BaseException) -> bool:
    """Whether an error is a user's, or of a file or a disk that the system refuses."""
    if isinstance(error, UserError):
        return True
    if not isinstance(error, OSError):
        return False
    return bool(error.filename or error.errno in (errno.ENOSPC, errno.EIO))


def sentence(error: BaseException) -> str:
    """What to print of an error, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
