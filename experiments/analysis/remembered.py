"""Results that take long and depend on little: made once, then read from ``state/``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.specs.code import code_hash
from experiments.store import paths
from experiments.store.io import read_cache, write_json


def remembered(
    kind: str, code: Path, facts: str, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What ``make`` returns, from ``state/<kind>`` where the same was made before.

    Args:
        kind: Folder of its results.
        code: File whose code, with all that it imports, makes the result.
        facts: All else that the result depends on.
        make: Makes the result, a JSON object that is not empty.
    """
    key = hashlib.sha256(f"{code_hash(code)}\n{facts}".encode()).hexdigest()
    file = paths.STATE / kind / f"{key}.json"
    if not (found := read_cache(file)):
        found = make()
        with suppress(OSError):  # then it is made again next time
            write_json(file, found)
    return found
