"""Records become the tidy tables of a study; `experiments.store.tidy` reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import machine, tasks
from experiments.specs.schema import PlannedStudy
from experiments.store import parquet
from experiments.store.record import Record, Row, Score, checked
from experiments.store.tidy import RECORD_COLUMNS, TYPES

#: Where a row of a curve stands; what else it holds was measured.
COORDINATES = ("kind", "step", "flops_executed", "elapsed_s")
#: Tasks of the Open LLM Leaderboard v1 without GSM8K, each with the metric that its average takes.
LEADERBOARD = {
    "arc_challenge": "acc_norm",
    "hellaswag": "acc_norm",
    "mmlu": "acc",
    "truthfulqa_mc2": "acc",
    "winogrande": "acc",
}


def _identity(record: Record, study_name: str) -> dict[str, Any]:
    """The columns that are the same for every metric of one run."""
    versions = record.versions
    return {
        "study": study_name,
        "run": record.run,
        **record.spec.labels,
        "data_hash": record.data.hash,
        "spec_hash": record.spec_hash,
        "code_hash": record.code_hash,
        "cpu": machine.processor(record.machine_facts, record.cpu),
        "machine": record.machine_key,
        "num_threads": record.num_threads,
        "versions": "; ".join(f"{name} {versions[name]}" for name in sorted(versions)),
        "command": record.command,
        "committed": False,
    }


def _row(metric: str, value: Any, split: str = "train") -> Row:
    value = None if value is None else float(value)
    return {"metric": metric, "value": value, "split": split, "task": "training"}


def _training_rows(record: Record) -> list[Row]:
    """Metrics that training itself measured."""
    train, task = record.rows("train"), tasks.get(record.spec.task).Task
    last = train[-1] if train else {}
    executed, dense = record.flops.executed, record.flops.dense_equivalent
    rows = [_row("loss", record.final_loss)]
    for validation in record.rows("validation")[-1:]:
        for name, value in _measured(validation, task.unit):
            rows.append(_row(name, value, "validation"))
    rows += [_row(to, last.get(key)) for to, key in (("steps", "step"), (task.unit, task.unit))]
    rows += [
        _row("itop", last.get("itop")),
        _row("flops_executed", executed),
        _row("flops_dense_equivalent", dense),
        _row("flops_ratio", executed / dense if dense else None),
    ]
    return [
        *rows,
        _row("wall_s", record.wall_s),
        _row("num_parameters", record.num_parameters),
        _row("num_nonzero", record.num_nonzero),
    ]


def _measured(row: Row, unit: str) -> list[tuple[str, float]]:
    """Measured numbers of a row of a curve, by name."""
    names = sorted(row.keys() - {*COORDINATES, unit})
    return [(name, float(row[name])) for name in names if isinstance(row[name], int | float)]


def evaluation_rows(record: Record) -> list[dict[str, Any]]:
    """Scores of a record, and the mean of the Open LLM Leaderboard where all its tasks have one."""
    if record.evaluation is None:
        return []
    rows = [score.model_dump(include={*Score.model_fields}) for score in record.evaluation.scores]
    wanted = [row for row in rows if LEADERBOARD.get(row["task"]) == row["metric"]]
    theirs = [row for row in wanted if row["value"] is not None]
    if len(theirs) == len(LEADERBOARD):
        rows.append({"task": "leaderboard", "metric": "leaderboard_mean", **average(theirs)})
    return rows


def average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Unweighted mean over tasks; the tasks' items are independent, so variances add."""
    errors = [row["stderr"] for row in rows]
    chances = [row["chance"] for row in rows]
    cut = [row.get("truncated_fraction") for row in rows]
    count = len(rows)
    return {
        "value": float(np.mean([float(row["value"]) for row in rows])),
        "stderr": None if None in errors else float(np.sqrt(np.sum(np.square(errors))) / count),
        "chance": None if None in chances else float(np.mean(chances)),
        "truncated_fraction": None if None in cut else float(np.mean(np.array(cut, float))),
        "num_items": int(sum(row["num_items"] or 0 for row in rows)),
    }


def record_rows(record: Record | dict[str, Any], study_name: str) -> list[Row]:
    """The tidy rows of one record; see ``RECORD_COLUMNS``.

    Layers are in the Parquet file ``layers`` alone.
    """
    record = Record.model_validate(record)
    trained = [row for row in _training_rows(record) if row["value"] is not None]
    rows = [*trained, *evaluation_rows(record)]
    identity = _identity(record, study_name)
    return [identity | {key: v for key, v in row.items() if v is not None} for row in rows]


def curve_rows(record: Record | dict[str, Any]) -> list[Row]:
    """The tidy rows of one record's learning curve; see `curves_table`.

    Validation rows carry no FLOPs or seconds of their own: both are interpolated between the
    training rows around them.
    """
    record = Record.model_validate(record)
    unit, train = tasks.get(record.spec.task).Task.unit, record.rows("train")
    steps = [row["step"] for row in train]
    rows = []
    for row in record.curve:
        place = {"run": record.run, "kind": row["kind"], "step": row["step"], unit: row.get(unit)}
        for name in ("flops_executed", "elapsed_s"):
            known = row.get(name)
            if known is None and train and train[0].get(name) is not None:
                known = float(np.interp(row["step"], steps, [r.get(name) or 0.0 for r in train]))
            place[name] = known
        rows += [place | {"metric": name, "value": v} for name, v in _measured(row, unit)]
    return rows


def records_table(records: Iterable[Record | dict[str, Any]], study: PlannedStudy) -> pd.DataFrame:
    """The tidy long table of several records, ordered as the study lists its runs."""
    rows = [row for record in records for row in record_rows(record, study.name)]
    return pd.DataFrame(rows, columns=list(RECORD_COLUMNS)).astype(TYPES)


def curves_table(records: Iterable[Record | dict[str, Any]]) -> pd.DataFrame:
    """The tidy long table of several learning curves: a row is a metric of a run at a step."""
    rows = [row for record in records for row in curve_rows(record)]
    columns = ["run", "kind", "step", *tasks.units(), "flops_executed", "elapsed_s"]
    return pd.DataFrame(rows, columns=[*columns, "metric", "value"])


def tables(
    records: Iterable[Mapping[str, Any]], study: PlannedStudy, *, committed: Collection[str] = ()
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tidy records and curves of a study.

    Args:
        records: Of its runs, in their JSON form; runs without one are left out, and the report
            names them.
    """
    order = {run.id: number for number, run in enumerate(study.runs)}
    own = [checked(record, f"record {record['run']}") for record in records]
    own.sort(key=lambda record: (order.get(record.run, len(order)), record.run))
    table = records_table(own, study)
    table["committed"] = table["run"].isin(committed).astype("boolean")
    return table, curves_table(own)


def write_tables(
    records: Iterable[Mapping[str, Any]],
    study: PlannedStudy,
    folder: Path,
    *,
    committed: Collection[str] = (),
) -> None:
    """Write ``records.csv``, ``curves.csv`` and the Parquet files of a study; see `tables`."""
    records = list(records)
    table, curves = tables(records, study, committed=committed)
    parquet.write(records, folder, level=3)
    _write_csv(table, folder / "records.csv")
    _write_csv(curves, folder / "curves.csv")


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as pandas does, in a tenth of the time."""
    import pyarrow as pa
    from pyarrow import csv

    plain = csv.WriteOptions(quoting_style="needed")
    csv.write_csv(pa.Table.from_pandas(table, preserve_index=False), path, plain)
