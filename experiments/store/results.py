"""The results of a study, one reader for all: what was made here, else the committed records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import pandas as pd

from experiments.errors import UserError
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import Run
from experiments.specs.schema import SCALES, PlannedStudy, check_choice
from experiments.store import collect, parquet, paths, reference, tidy
from experiments.store.io import read_json
from experiments.store.record import checked


class Results(NamedTuple):
    """DataFrames with the column ``run``.

    Attributes:
        records: One row per finished run, in the order of the study: its settings (``model``,
            ``method``, ``sparsity``, ``seed``, ...), final losses in nats, FLOPs and hashes;
            ``committed`` is False where the run was trained here. Parts of a record are JSON text.
        curves: One row per run and logged step: ``kind`` (train or validation), ``loss`` in nats,
            ``sparsity``, ``churn``, ``flops_executed``, ...
        scores: One row per run, task and metric of the evaluation: ``value``, ``stderr``, ...
    """

    records: pd.DataFrame
    curves: pd.DataFrame
    scores: pd.DataFrame


def collected(
    scale: str, study: str, runs: Iterable[str], *, tables: Collection[str] = parquet.TABLES
) -> list[dict[str, Any]]:
    """The records of some runs in their JSON form, as a study's tables have them.

    Where nothing was collected here, these are the committed records. See `parquet.read`.
    """
    folder = paths.study(scale, study)
    if (folder / "runs.parquet").is_file():
        return parquet.read(folder, list(runs), tables=tables)
    return list(reference.find_all(runs, tables=tables).values())


def tables(study: PlannedStudy) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tidy records and curves of a study; see `experiments.store.tidy`.

    Raises:
        UserError: If it has runs and no result, neither here nor committed.
    """
    folder = paths.study(study.scale, study.name)
    if (folder / "records.csv").is_file():
        records = _of_plan(tidy.read_records(folder / "records.csv"), study)
        curves = tidy.read_curves(folder / "curves.csv")
        return records, curves[curves["run"].isin(records["run"])]
    found = _committed(study.runs)
    if study.runs and not found:
        raise UserError(
            f"study {study.name!r} has no results at scale {study.scale!r} yet, neither here nor "
            f"committed: run `snakemake reproduce --config scale={study.scale} study={study.name}`"
        )
    return collect.tables(found.values(), study, committed=found)


def scores(study: PlannedStudy) -> pd.DataFrame:
    """Columns of the tidy records of a study that comparisons read, `tidy.SCORE_COLUMNS`."""
    path = paths.study(study.scale, study.name) / "records.csv"
    if path.is_file():
        columns = tidy.SCORE_COLUMNS | {"spec_hash": str}
        return _of_plan(tidy.read_table(path, columns, dtype=columns, only=True), study)
    found = _committed(study.runs)
    records = [checked(record, f"committed {name}") for name, record in found.items()]
    return collect.records_table(records, study)


def _of_plan(rows: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """The rows of runs that have the settings of the plan, which may be newer than the rows."""
    hashes = {run.id: run.spec.hash for run in study.runs}
    return rows[rows["run"].map(hashes) == rows["spec_hash"]]


def _committed(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """The committed records that have the settings of the plan."""
    hashes = {run.id: run.spec.hash for run in runs}
    found = reference.find_all(hashes)
    return {run: record for run, record in found.items() if record["spec_hash"] == hashes[run]}


def load(study: str, scale: str) -> Results:
    """Read the finished runs of a study as DataFrames, for notebooks.

    Raises:
        UserError: If there is no such study or scale, or it has no finished run.
    """
    check_choice("scale", scale, SCALES)
    plan = study_runs(load_study(study), scale)
    runs, here = [run.id for run in plan], {}
    for run in plan:
        path = paths.run(scale, run.id) / "record.json"
        if path.is_file() and (record := read_json(path)).get("spec_hash") == run.spec.hash:
            here[run.id] = record
    found = _committed(plan) | here
    if not found:
        raise UserError(
            f"study {study!r} has no finished run at scale {scale!r}, neither here nor committed"
        )
    frames = parquet.frames([found[run] for run in runs if run in found])
    records = frames["runs"].assign(committed=lambda rows: ~rows["run"].isin(list(here)))
    return Results(records, frames["curves"], frames["scores"])
