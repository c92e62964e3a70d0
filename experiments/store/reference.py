"""Committed records in place of new runs."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.specs.run import Run
from experiments.store import paths


def reusable(run: Run, *, data_folder: Path) -> bool:
    """Whether a committed record answers for this run: same spec, and same data if prepared."""
    committed = paths.committed(run.id)
    if not committed.is_file():
        return False
    record = json.loads(committed.read_text())
    if record["spec_hash"] != run.spec_hash or record["spec"]["suite"] != run.spec.suite:
        return False
    meta = data_folder / run.data_label / "meta.json"
    return not meta.is_file() or json.loads(meta.read_text())["hash"] == record["data"]["hash"]
