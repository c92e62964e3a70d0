"""Finished records become committed ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.specs.expand import all_runs
from experiments.specs.lookup import known_runs
from experiments.specs.schema import SCALES, Scale
from experiments.store import parquet, paths, reference
from experiments.store.io import read_json
from experiments.store.record import read_record


def read_own(scale: Scale) -> Iterator[dict[str, Any]]:
    """The finished records of a scale, without those of a spec that the studies changed since."""
    for name, run in known_runs(scale).items():
        path = paths.run(scale, name) / "record.json"
        if path.is_file() and read_record(path).spec_hash == run.spec_hash:
            yield read_json(path)


def fold(records: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Add records to the committed ones, and drop those that no study plans.

    Args:
        records: In their JSON form; one takes the place of the committed record of its run.

    Raises:
        UserError: If a study is wrong, whose records would be dropped.
    """
    planned = {run.id: run for scale in SCALES for run in all_runs(scale).values()}
    old = sorted({entry.folder for entry in reference.entries().values()})
    folders: dict[Path, dict[str, Mapping[str, Any]]] = {folder: {} for folder in old}
    committed = [record for folder in old for record in parquet.read(folder)]
    for record in (*committed, *records):
        run = planned.get(record["run"])
        if run is not None and run.spec_hash == record["spec_hash"]:
            home = paths.REFERENCE / run.studies[0]
            folders.setdefault(home, {})[run.id] = record
    changed: list[Path] = []
    for folder, own in folders.items():
        if own:
            changed += parquet.write(own.values(), folder)
            continue
        for name in parquet.TABLES:
            (folder / f"{name}.parquet").unlink()
            changed.append(folder / f"{name}.parquet")
    return changed
