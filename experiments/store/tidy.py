"""Tidy tables of a study: reading them, and choosing rows; `experiments.store.collect` makes them.

``records.csv``
    One row per run and metric; the columns are described in ``RECORD_COLUMNS``.
``curves.csv``
    One row per run, logged step and metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.errors import UserError
from experiments.specs.schema import PlannedStudy
from experiments.store import paths

RECORD_COLUMNS = {
    "study": "study that shows the run",
    "run": "run id",
    "model": "model label",
    "dataset": "name in the data registry",
    "method": "name of the method in the study's file",
    "algorithm": "sparsity algorithm, or dense where no weight is masked",
    "family": "Sparse-IFT family of the transformed model, empty without one",
    "sparsity": "target fraction of zero weights at the end of training, in [0, 1]",
    "seed": "seed of the run",
    "scale": "smoke, quick, small, gpu or paper",
    "recipe": "name of the training recipe",
    "metric": "what was measured",
    "value": "measured value",
    "stderr": "standard error of the value over test items, where the metric has one",
    "split": "part of the data the value was measured on",
    "task": "training, or the evaluation task",
    "data_hash": "hash of the data the value was measured on",
    "spec_hash": "hash of the run's specification",
    "code_hash": "hash of the library and experiment code that the run used",
    "num_items": "number of test items",
    "chance": "value that guessing would reach, where it is known",
    "num_fewshot": "number of solved examples shown before each test item",
    "truncated_fraction": "share of prompts cut on the left to fit the context",
    "cpu": "processor: model name, stepping, vector instructions and cores, as far as recorded",
    "machine": "key of the machine that all timings of the run were taken on, or 'not recorded'",
    "num_threads": "threads of the training process",
    "versions": "library versions, as 'name version; name version'",
    "command": "command that repeats the run",
    "committed": "True where the committed record stands for the run, False where it ran here",
}
#: Rows are chosen thousands of times for a page; Arrow's texts would be copied each time.
TEXT = pd.StringDtype("python")
#: Types of those columns that are no text.
NUMBERS = dict.fromkeys("value stderr chance sparsity truncated_fraction".split(), "float64")
NUMBERS |= dict.fromkeys(("seed", "num_items", "num_fewshot", "num_threads"), "Int64")
NUMBERS["committed"] = "boolean"
#: So that a column without values reads back as it was written.
TYPES: dict[str, Any] = {name: NUMBERS.get(name, TEXT) for name in RECORD_COLUMNS}
#: Columns that a comparison between studies reads, so that a page reads them of every study.
SCORE_COLUMNS = {
    name: TYPES[name] for name in ("run", "metric", "split", "task", "value", "stderr", "chance")
}


#: Methods that make a training the main one of a study.
MANY = 4


class Workload(NamedTuple):
    """A model on a dataset; all runs of a study train it by one recipe and its variants.

    The study's first workload that a question concerns is its primary one.
    """

    model: str
    dataset: str

    def __str__(self) -> str:
        return f"{self.model} on {self.dataset}"


def read_table(
    path: Path, columns: Iterable[str], *, dtype: dict[str, Any] | None = None, only: bool = False
) -> pd.DataFrame:
    """Read a CSV file that has certain columns, with all others or ``only`` those.

    Raises:
        UserError: If it is no CSV file of text, or columns are absent, as in a file of an older
            version; the message names the file.
    """
    try:
        table = pd.read_csv(path, dtype=dtype, usecols=(lambda n: n in columns) if only else None)
    except ValueError as error:  # empty, cut, or no text
        raise UserError(f"{path}: not a table: {' '.join(str(error).split())}") from None
    absent = [name for name in columns if name not in table]
    if absent:
        raise UserError(
            f"{path} has no column {' and '.join(absent)}: another version wrote it, and "
            "`snakemake reproduce` collects it again"
        )
    return table


def read_records(path: Path) -> pd.DataFrame:
    """Read ``records.csv`` with the types of ``RECORD_COLUMNS``.

    Raises:
        ValueError: If it is no such table; the message names the file.
    """
    return read_table(path, RECORD_COLUMNS, dtype=TYPES)


def read_curves(path: Path) -> pd.DataFrame:
    """Read ``curves.csv``; raises `ValueError` as `read_records` does."""
    text = dict.fromkeys(("run", "kind", "metric"), TEXT)
    columns = (*text, "step", "flops_executed", "elapsed_s", "value")
    return read_table(path, columns, dtype=text)


def computed(scale: str, name: str, table: str) -> pd.DataFrame:
    """Read one table of a computation; see `experiments.computations`.

    Raises:
        UserError: If the computation has not been made at this scale, or has no such table.
    """
    path = paths.computation(scale, name) / f"{table}.csv"
    if not path.parent.is_dir() and scale == paths.REFERENCE_SCALE:
        path = paths.REFERENCE / name / path.name
    if not path.is_file():
        raise UserError(
            f"{path} is missing: run `python -m experiments compute {name} "
            f"--scale {scale}`, or correct the table's name"
        )
    return pd.read_csv(path)


def select(
    records: pd.DataFrame, metric: str, *, split: str | None = None, task: str | None = None
) -> pd.DataFrame:
    """One row per run of a metric: the evaluation's where it exists, else training's.

    Args:
        split: Part of the data; None takes any.
        task: Task; None takes any, evaluation tasks first.
    """
    rows = records[records["metric"] == metric]
    if split is not None:
        rows = rows[rows["split"] == split]
    if task is not None:
        rows = rows[rows["task"] == task]
    rows = rows.assign(own=rows["task"] == "training")
    rows = rows.sort_values("own", kind="stable").drop_duplicates("run")
    return rows.drop(columns="own").sort_index()


def validation_perplexity(records: pd.DataFrame) -> pd.DataFrame:
    """One row per run: perplexity on the validation split (else on the test split).

    A trainer's last pass comes first: it is over more of the data than an evaluation's.
    """
    rows = select(records, "perplexity", split="validation", task="training")
    rows = rows if len(rows) else select(records, "perplexity", split="validation")
    return rows if len(rows) else select(records, "perplexity", split="test")


def executed_flops(records: pd.DataFrame, study: PlannedStudy) -> pd.Series:
    """The training FLOPs that each run executed, 2 per multiply-add, by run id.

    A run that starts from the weights of another one includes what that one took; NaN where that
    one has no record. A run that goes on from another one's state has counted it.
    """
    own = records[records["metric"] == "flops_executed"].groupby("run")["value"].first()
    starts = {run.id: run.spec.starts_from for run in study.runs}

    def whole(run: str) -> float:
        start = starts.get(run)
        before = whole(start.run) if start is not None and start.step is None else 0.0
        return before + float(own.get(run, math.nan))

    return pd.Series({run: whole(run) for run in own.index}, dtype=float)


def workloads(records: pd.DataFrame) -> list[Workload]:
    """The workloads of the records, in the order they occur."""
    pairs = records[["model", "dataset"]].drop_duplicates()
    return [Workload(row.model, row.dataset) for row in pairs.itertuples()]


def in_workload(table: pd.DataFrame, workload: Workload) -> pd.DataFrame:
    """The rows of one workload."""
    return table[(table["model"] == workload.model) & (table["dataset"] == workload.dataset)]


def headline(rows: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """The rows of runs by their method's own recipe, and by those that the study shows.

    Runs by another variant than their method's own (other budgets, other learning rates) are no
    headline runs. A method that the study does not know keeps all its rows.
    """
    own = {name: method.recipe for name, method in study.methods.items()}
    if not own:
        return rows
    wanted = rows["method"].map(own)
    is_shown = rows["recipe"].isin(study.shown)
    return rows[wanted.isna() | (rows["recipe"] == wanted) | is_shown]


def main_training(curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """The labelled curves of one model, dataset and length, without retuned methods.

    It is the longest training that at least `MANY` methods share or, where none has so many, the
    longest of those that most methods share.
    """
    retuned = {name for name, method in study.methods.items() if method.retuned}
    curves = curves[~curves["method"].isin(retuned)]
    if curves.empty:
        return curves
    coordinate = "images" if curves["tokens"].isna().all() else "tokens"
    length = curves.groupby("run")[coordinate].transform("max")
    keys = [curves["model"], curves["dataset"], length.round(-3)]
    methods = curves.groupby(keys)["method"].nunique()
    enough = methods[methods >= min(MANY, methods.max())]
    model, dataset, budget = max(enough.index, key=lambda key: (key[2], enough[key]))
    return curves[(keys[0] == model) & (keys[1] == dataset) & (keys[2] == budget)]


def by_level(rows: pd.DataFrame, *, most: int | None = None) -> list[tuple[float, pd.DataFrame]]:
    """(sparsity, its rows and the dense ones) by sparsity; one entry if all are dense.

    Args:
        most: How many sparsities at most, those with the most runs; None for all.
    """
    runs = rows[rows["sparsity"] > 0].groupby("sparsity")["run"].nunique()
    levels = sorted(runs.sort_values(ascending=False, kind="stable").index[:most])
    return [(level, rows[rows["sparsity"].isin([0.0, level])]) for level in levels or [0.0]]


def mask_sparsity(curves: pd.DataFrame) -> pd.Series[float]:
    """Run to the sparsity of its masked weights when it ended; dense runs have none."""
    rows = curves[(curves["metric"] == "sparsity") & (curves["kind"] == "train")]
    return rows.sort_values("step").groupby("run")["value"].last()


def treatments(records: pd.DataFrame) -> list[tuple[str, float]]:
    """The (method, sparsity) pairs of the records, in the order they occur."""
    pairs = records[["method", "sparsity"]].drop_duplicates()
    return [(row.method, float(row.sparsity)) for row in pairs.itertuples()]


def by_masks(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs, where a transformed model's sparsity is its masks', in whole percent.

    One that meets the FLOPs of the whole dense model is sparser than the level by which it was
    widened.
    """
    masks = runs["run"].map(mask_sparsity(curves)).round(2).where(runs["family"].fillna("") != "")
    return runs.assign(sparsity=masks.fillna(runs["sparsity"]))


def label_curves(
    curves: pd.DataFrame, records: pd.DataFrame, metrics: Iterable[str]
) -> pd.DataFrame:
    """Rows of some metrics, with what tells their runs apart; sparsity as `by_masks` has it."""
    columns = "run method algorithm family sparsity model dataset recipe seed machine".split()
    runs = by_masks(records.reindex(columns=columns).drop_duplicates("run"), curves)
    return curves[curves["metric"].isin(list(metrics))].merge(runs, on="run", how="inner")
