"""Finished runs as Parquet files: the one reader and the one writer.

A folder holds four tables of the same runs:

``runs.parquet``
    One row per run. Each key of a record is a column; values with parts (``spec``, ``flops``,
    ``machine``) are JSON text. The columns of `SHOWN` repeat a few facts for queries.
``curves.parquet``, ``layers.parquet``, ``scores.parquet``
    One row per logged step, per masked weight, and per score of the evaluation. ``run`` names the
    run, ``nulls`` the keys that the record has without a value; other empty cells are absent keys.

`read` gives back each record as `write` took it. ``results/reference/<study>`` are such folders,
which `experiments.store.reference` finds, and so is ``results/<scale>/<study>``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.errors import UserError
from experiments.store import paths
from experiments.store.io import write_whole

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLES = ("runs", "curves", "layers", "scores")
#: Columns of ``runs.parquet`` that repeat a part of the record, and where it stands there.
SHOWN: dict[str, tuple[str, ...]] = {
    "model": ("spec", "model", "label"),
    "dataset": ("spec", "data", "name"),
    "method": ("spec", "method"),
    "sparsity": ("spec", "final_sparsity"),
    "seed": ("spec", "seed"),
    "scale": ("spec", "scale"),
    "recipe": ("spec", "recipe", "name"),
    "suite": ("spec", "suite"),
    "data_hash": ("data", "hash"),
    "train_loss": ("final", "train_loss"),
    "validation_loss": ("final", "validation_loss"),
    "flops_executed": ("flops", "executed"),
}

Row = dict[str, Any]


def write(records: Iterable[Mapping[str, Any]], folder: Path, *, level: int = 19) -> list[Path]:
    """Write the tables of some runs, in the order of their ids; equal records give equal files.

    Args:
        level: Of compression by zstd, 1 to 22; higher is smaller and slower.
    """
    import pyarrow.parquet as pq

    rows, changed = _tables(sorted(records, key=lambda record: record["run"])), []
    for name in TABLES:
        path, stream = folder / f"{name}.parquet", io.BytesIO()
        table = _arrow_table(rows[name])
        pq.write_table(table, stream, compression="zstd", compression_level=level)
        if not path.is_file() or path.read_bytes() != stream.getvalue():
            write_whole(path, stream.getvalue())
            changed.append(path)
    return changed


def read(
    folder: Path, runs: Collection[str] | None = None, *, tables: Collection[str] = TABLES
) -> list[Row]:
    """The records of a folder in the order of their ids, in their JSON form.

    Args:
        runs: Ids of those to read; None reads all.
        tables: Files to read, ``runs`` among them; what the others hold is left empty.

    Raises:
        UserError: If a file is missing, damaged, or no table of this kind; it names the file.
    """
    if runs is not None and not runs:
        return []
    parts = {name: _rows(folder / f"{name}.parquet", runs) for name in tables}
    by_run: dict[str, dict[str, list[Row]]] = {}
    for name in parts.keys() - {"runs"}:
        for row in parts[name]:
            by_run.setdefault(row.pop("run"), {}).setdefault(name, []).append(row)
    return [_joined(row, by_run.get(row["run"], {})) for row in parts["runs"]]


def frames(records: Iterable[Mapping[str, Any]]) -> dict[str, pd.DataFrame]:
    """The tables of some records, in their order, as DataFrames; values with parts are JSON."""
    found = {name: _arrow_table(rows).to_pandas() for name, rows in _tables(records).items()}
    shown = [name for name in ("run", *SHOWN) if name in found["runs"]]
    others = [name for name in found["runs"] if name not in shown]
    found["runs"] = found["runs"][[*shown, *others]]
    return {name: table.drop(columns="nulls") for name, table in found.items()}


def _tables(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Row]]:
    """Records as the rows of each table."""
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    for record in records:
        for name, own in _split(record).items():
            rows[name] += own
    return rows


def _split(record: Mapping[str, Any]) -> dict[str, list[Row]]:
    """A record as the rows of each table."""
    run, evaluation = record["run"], record.get("evaluation")
    row = {key: value for key, value in record.items() if key not in ("curve", "layers")}
    for name, place in SHOWN.items():
        part: Any = record
        for key in place:
            part = (part or {}).get(key)
        row[name] = part
    scores = []
    if evaluation is not None:
        rest = {key: value for key, value in evaluation.items() if key != "scores"}
        row["evaluation_machine"] = rest.pop("machine", None)
        row["evaluation"], scores = rest, evaluation.get("scores", [])
    parts = {"curves": record["curve"], "layers": record["layers"], "scores": scores}
    return {
        "runs": [row],
        **{name: [{"run": run, **own} for own in rows] for name, rows in parts.items()},
    }


def _joined(row: Row, parts: Mapping[str, list[Row]]) -> Row:
    """The record that `_split` took apart."""
    record = {key: value for key, value in row.items() if key not in SHOWN}
    machine = record.pop("evaluation_machine", None)
    if record.get("evaluation") is not None:
        record["evaluation"] |= {"scores": parts.get("scores", [])}
        if machine is not None:
            record["evaluation"]["machine"] = machine
    return record | {"curve": parts.get("curves", []), "layers": parts.get("layers", [])}


def _arrow_table(rows: list[Row]) -> pa.Table:
    """Rows as a table whose metadata say which columns are JSON."""
    import pyarrow as pa

    nulls = [",".join(sorted(key for key, value in row.items() if value is None)) for row in rows]
    columns: dict[str, pa.Array] = {}
    fields: list[pa.Field] = []
    for name in dict.fromkeys(["run", *(key for row in rows for key in sorted(row))]):
        values = [row.get(name) for row in rows]
        kind = _kind([value for value in values if value is not None])
        if kind is None:
            values = [None if value is None else _text(value) for value in values]
        columns[name] = pa.array(values, kind or pa.string())
        fields.append(pa.field(name, columns[name].type, metadata=None if kind else {"is": "json"}))
    columns["nulls"] = pa.array(nulls, pa.string())
    fields.append(pa.field("nulls", pa.string()))
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def _kind(values: list[Any]) -> pa.DataType | None:
    """The type of a column; None where it has parts or several types, and becomes JSON."""
    import pyarrow as pa

    kinds = {type(value) for value in values}
    if kinds == {int, float}:  # FLOPs: whole in some rows
        kinds = {float} if all(float(value) == value for value in values) else {object}
    known: dict[Any, Callable[[], pa.DataType]] = {
        str: pa.string, bool: pa.bool_, float: pa.float64, int: pa.int64,
    }  # fmt: skip
    (kind,) = kinds if len(kinds) == 1 else (object,)
    if kind is int and not all(-(2**63) <= value < 2**63 for value in values):
        return None
    return known[kind]() if kind in known else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def arrow(
    path: Path, runs: Collection[str] | None = None, columns: list[str] | None = None
) -> pa.Table:
    """A file's table, or its rows of some runs, or some of its columns. Raises as `read` does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chosen = None if runs is None else [("run", "in", list(runs))]
    needed = columns or ("run", "nulls")
    try:
        if absent := [name for name in needed if name not in pq.read_schema(path).names]:
            raise ValueError(f"it lacks the column {absent[0]!r}")
        return pq.read_table(path, filters=chosen, columns=columns)
    except FileNotFoundError:
        cure = (
            f"`git checkout -- {path.parent}` restores it"
            if paths.REFERENCE in path.absolute().parents
            else "`snakemake reproduce` of this study and scale makes it"
        )
        raise UserError(f"{path} is missing: {cure}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).rpartition("': ")[2].split())[:200]
        raise UserError(
            f"{path} is no table of records ({said}); `git checkout -- {path.parent}` "
            "restores a committed one"
        ) from None


def _rows(path: Path, runs: Collection[str] | None) -> list[Row]:
    """The rows of a file as they were written."""
    found = arrow(path, runs)
    nulls = found.column("nulls").to_pylist()
    columns: dict[str, list[Any]] = {}
    for field in found.schema:
        if field.name == "nulls":
            continue
        values = found.column(field.name).to_pylist()
        if (field.metadata or {}).get(b"is") == b"json":
            values = [None if value is None else json.loads(value) for value in values]
        columns[field.name] = values
    rows = [
        {key: value for key, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]
    for row, names in zip(rows, nulls, strict=True):
        if names:
            row |= dict.fromkeys(names.split(","))
    return rows
