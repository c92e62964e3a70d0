"""`python -m experiments`: all commands, and how their errors end."""

from __future__ import annotations

import os
import sys

from experiments.cli import inspect, pack, report, train, verify  # noqa: F401  they register their commands
from experiments.cli.options import app
from experiments.errors import UserError, explained, sentence


def main() -> None:
    """Run a command; a user's mistake ends in one sentence, a bug in a traceback."""
    try:
        app()
    except (UserError, OSError) as error:
        if os.environ.get("SPARSE_DEBUG", "0") not in ("", "0") or not explained(error):
            raise
        lines = sentence(error).splitlines()  # names of files may have several
        sys.exit("Error: " + "\\n".join(lines))
