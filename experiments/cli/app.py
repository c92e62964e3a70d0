"""`python -m experiments`: all commands, and how their errors end."""

from __future__ import annotations

import errno
import linecache
import os
import sys
from pathlib import Path

from experiments.cli import inspect, report, train  # noqa: F401  they register their commands
from experiments.cli.options import app
from experiments.specs.code import ROOT

#: Errors that the code raises on purpose where a user is at fault, with a sentence for them.
MEANT = (ValueError, RuntimeError, ArithmeticError, OSError)


def main() -> None:
    """Run a command; a user's mistake ends in one sentence, a bug in a traceback."""
    try:
        app()
    except MEANT as error:
        if os.environ.get("SPARSE_DEBUG") or not explained(error):
            raise
        sys.exit(f"Error: {sentence(error)}")


def explained(error: BaseException) -> bool:
    """Whether a `raise` statement of this repository made the error, or a file that it names."""
    if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EIO)):
        return True
    if error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    file = Path(last.tb_frame.f_code.co_filename)
    ours = file.is_relative_to(ROOT) and "site-packages" not in file.parts
    return ours and linecache.getline(str(file), last.tb_lineno).lstrip().startswith("raise")


def sentence(error: BaseException) -> str:
    """What to print of an error, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
