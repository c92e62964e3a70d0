"""The committed records: ``results/reference/<study>``, in the form of `experiments.store.parquet`.

A record lies with the first study, by name, that plans its run.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError, not_one_of
from experiments.specs.expand import all_runs
from experiments.specs.lookup import known_runs
from experiments.specs.read import BEFORE_RETIREMENT
from experiments.specs.run import Run
from experiments.specs.schema import SCALES, SpecError, check_choice
from experiments.store import parquet, paths
from experiments.store.io import read_json


class Entry(NamedTuple):
    """The columns of a committed record that are read without reading all of it."""

    folder: Path
    spec_hash: str
    suite: str | None
    data_hash: str


def entries() -> dict[str, Entry]:
    """All committed records by run id."""
    files = sorted(paths.REFERENCE.glob("*/runs.parquet"))
    return _entries(tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@functools.lru_cache(maxsize=2)
def _entries(files: tuple[tuple[Path, int, int], ...]) -> dict[str, Entry]:
    columns = ["run", *Entry._fields[1:]]
    return {
        row.pop("run"): Entry(file.parent, **row)
        for file, *_ in files
        for row in parquet.arrow(file, columns=columns).to_pylist()
    }


def recorded(runs: Iterable[Run], asked: str) -> list[Run]:
    """The runs that have a committed record; raises `SpecError` where none has."""
    known = entries()
    if not (found := [run for run in runs if run.id in known]):
        raise SpecError(f"no record of {asked} is committed, so there is nothing to verify")
    return found


def find(run_id: str) -> dict[str, Any]:
    """The committed record of a run, in its JSON form.

    Raises:
        UserError: If there is none; one sentence with the nearest id.
    """
    known = entries()
    if run_id not in known:
        said = not_one_of("run", run_id, known, "`python -m experiments plan --scale small`")
        raise UserError(f"{said} (records of retired studies are in commit {BEFORE_RETIREMENT})")
    return parquet.read(known[run_id].folder, [run_id])[0]


def find_all(
    runs: Iterable[str], *, tables: Collection[str] = parquet.TABLES
) -> dict[str, dict[str, Any]]:
    """The committed records of those of some runs that have one, by run id; see `parquet.read`."""
    known, wanted = entries(), dict[Path, set[str]]()
    for run in runs:
        if run in known:
            wanted.setdefault(known[run].folder, set()).add(run)
    parts = (parquet.read(folder, ids, tables=tables) for folder, ids in wanted.items())
    return {record["run"]: record for records in parts for record in records}


def seeds_of(run: Run) -> list[float]:
    """The recorded validation losses of a run and of its further seeds, as far as committed."""
    same = run.spec.id.rsplit("__seed", 1)[0] + "__seed"
    twins = find_all(name for name in entries() if name.startswith(same)).values()
    losses = [record["final"].get("validation_loss") for record in twins]
    return [loss for loss in losses if loss is not None]


def reusable(run: Run) -> bool:
    """Whether a committed record answers for this run: same spec, and same data if prepared."""
    entry = entries().get(run.id)
    if entry is None or (entry.spec_hash, entry.suite) != (run.spec.hash, run.spec.suite):
        return False
    meta = paths.data(run.spec.data.label) / "meta.json"
    return not meta.is_file() or read_json(meta)["hash"] == entry.data_hash


def read_own(scale: str) -> Iterator[dict[str, Any]]:
    """The finished records of a scale, without those of a spec that the studies changed since."""
    from experiments.store.record import read_record

    for name, run in known_runs(check_choice("scale", scale, SCALES)).items():
        path = paths.run(scale, name) / "record.json"
        if path.is_file() and read_record(path).spec_hash == run.spec.hash:
            yield read_json(path)


def fold(records: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Add records to the committed ones, and drop those that no study plans.

    Args:
        records: In their JSON form; one takes the place of the committed record of its run.

    Raises:
        UserError: If a study is wrong, whose records would be dropped.
    """
    planned = {run.id: run for scale in SCALES for run in all_runs(scale).values()}
    old = sorted({entry.folder for entry in entries().values()})
    folders: dict[Path, dict[str, Mapping[str, Any]]] = {folder: {} for folder in old}
    committed = [record for folder in old for record in parquet.read(folder)]
    for record in (*committed, *records):
        run = planned.get(record["run"])
        if run is not None and run.spec.hash == record["spec_hash"]:
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
