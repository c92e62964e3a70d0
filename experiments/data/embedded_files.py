"""Files of `embedded/`, which travel with the repository, compressed by xz."""

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from experiments.data.base import MissingData

FOLDER = Path(__file__).parent / "embedded"


@contextmanager
def opened(name: str) -> Iterator[TextIO]:
    """Open one file as UTF-8 text.

    Args:
        name: Its path below `embedded/`, without ``.xz``.

    Raises:
        MissingData: If it is missing, cut short or no xz file.
    """
    path = FOLDER / f"{name}.xz"
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            yield file
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise MissingData(
            f"{path} is missing or damaged ({error}): restore it with `git checkout`"
        ) from error
