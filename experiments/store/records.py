"""The only reader and writer of results.

A *record* is the committed form of one finished run: ``train.json`` and ``eval.json`` merged
with a thinned learning curve. Records of a study become three tables beside each other:

``records.csv`` (and ``.parquet``)
    One row per run and metric; the columns are described in ``RECORD_COLUMNS``.
``curves.csv``
    One row per run, logged step and metric; the columns are described in ``CURVE_COLUMNS``.
"""

import json
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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
    "scale": "smoke, quick, small or paper",
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
    "higher_is_better": "True, False, or empty where neither applies",
    "num_fewshot": "number of solved examples shown before each test item",
    "truncated_fraction": "share of prompts cut on the left to fit the context",
    "unknown_fraction": "share of the text's tokens that the tokenizer does not know; above 0.2 "
    "there is no value",
    "cpu": "processor model",
    "num_threads": "threads of the training process",
    "versions": "library versions, as 'name version; name version'",
    "command": "command that repeats the run",
    "committed": "True where the committed record stands for the run, False where it ran here",
}
#: Columns that a file may lack.
OPTIONAL = frozenset({"committed", "unknown_fraction"})
CURVE_COLUMNS = {
    "run": "run id",
    "kind": "train or validation",
    "step": "optimizer step",
    "tokens": "training tokens seen, of a language model",
    "images": "training images seen, of a vision model",
    "flops_executed": "training FLOPs executed so far",
    "elapsed_s": "seconds of training so far",
    "metric": "what was measured",
    "value": "measured value",
}
SCORE_FACTS = ("num_items", "chance", "num_fewshot", "truncated_fraction", "unknown_fraction")
UNITS = ("tokens", "images")
CURVE_METRICS = (
    "loss",
    "perplexity",
    "accuracy",
    "learning_rate",
    "sparsity",
    "drop_fraction",
    "churn",
    "itop",
    "flops_dense",
    *(f"{unit}_per_s" for unit in UNITS),
)
MAX_CURVE_ROWS = 200
FINAL_SHARE = 0.1
TEXT_COLUMNS = (
    "study run model dataset method algorithm family scale recipe metric split task data_hash "
    "spec_hash code_hash cpu versions command"
).split()
ACCURACY_METRICS = ("acc", "acc_norm", "accuracy", "pair_accuracy", "exact_match")
#: Tasks of the Open LLM Leaderboard v1 without GSM8K, each with the metric that its average takes.
LEADERBOARD = {
    "arc_challenge": "acc_norm",
    "hellaswag": "acc_norm",
    "mmlu": "acc",
    "truthfulqa_mc2": "acc",
    "winogrande": "acc",
}
#: Means over tasks: of the leaderboard, and of the other tasks.
MEAN_METRICS = ("accuracy_mean", "leaderboard_mean")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file; a torn last line (a killed run) is ignored."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number != len(lines) - 1:
                raise ValueError(f"{Path(path).name}: line {number + 1} is not JSON") from None
    return rows


def _evenly(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most ``count`` rows, evenly spaced, first and last always among them."""
    if len(rows) <= count:
        return list(rows)
    kept = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
    return [rows[index] for index in kept]


def thin_curve(
    rows: Sequence[dict[str, Any]], *, max_rows: int = MAX_CURVE_ROWS
) -> list[dict[str, Any]]:
    """Keep at most ``max_rows`` rows of a learning curve.

    A quarter goes to validation rows, up to half to training rows that carry no churn, the rest to
    those that do (where only updates log it, they are sparse in time and would otherwise be lost).
    First and last rows of each kind stay.

    Args:
        rows: Rows of ``metrics.jsonl`` in the order they were written.
        max_rows: Upper bound on the number of rows returned, at least 8.

    Returns:
        The kept rows, ordered by step.
    """
    if len(rows) <= max_rows:
        return list(rows)
    quarter = max_rows // 4
    validation = [row for row in rows if row["kind"] == "validation"]
    train = [row for row in rows if row["kind"] == "train"]
    moved = [row for row in train if row.get("churn") is not None]
    still = [row for row in train if row.get("churn") is None]
    kept = _evenly(validation, quarter)
    kept += _evenly(moved, max_rows - len(kept) - min(len(still), 2 * quarter))
    kept += _evenly(still, max_rows - len(kept))
    return sorted(kept, key=lambda row: (row["step"], row["kind"]))


def make_record(
    train: dict[str, Any] | Path,
    evaluation: dict[str, Any] | Path | None,
    metrics: Sequence[dict[str, Any]] | Path,
) -> dict[str, Any]:
    """Merge what a run wrote into its committed record.

    Args:
        train: ``train.json``, as a path or its content.
        evaluation: ``eval.json``, as a path or its content; None if the run was not evaluated.
        metrics: ``metrics.jsonl``, as a path or its rows.

    Returns:
        The content of ``train.json`` plus ``evaluation`` (the content of ``eval.json``),
        ``final_loss`` (mean training loss over the last tenth of the logged steps, in nats) and
        ``curve`` (at most 200 rows).
    """
    train = train if isinstance(train, dict) else read_json(train)
    if isinstance(evaluation, Path):
        evaluation = read_json(evaluation)
    rows = read_jsonl(metrics) if isinstance(metrics, Path) else list(metrics)
    rows = [{key: _plain(value) for key, value in row.items()} for row in rows]
    if evaluation is not None and evaluation.get("run", train["run"]) != train["run"]:
        raise ValueError(f"eval.json is of run {evaluation['run']}, train.json of {train['run']}")
    record = dict(train)
    record["evaluation"] = evaluation
    record["final_loss"] = final_loss(rows)
    record["curve"] = thin_curve(rows)
    return record


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: a diverged loss is kept as null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def final_loss(rows: Iterable[dict[str, Any]]) -> float | None:
    """Mean training loss over the last tenth of the logged steps: one step's loss is noise."""
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    tail = losses[-max(1, round(FINAL_SHARE * len(losses))) :]
    return None if not tail or None in tail else float(np.mean(tail))


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record as stable, diff-friendly JSON."""
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _identity(record: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """The columns that are the same for every metric of one run."""
    spec = record["spec"]
    versions = record.get("versions") or {}
    recipe = spec.get("recipe") or {}
    return {
        "study": study["name"],
        "run": record["run"],
        "model": spec["model"]["label"],
        "dataset": spec["data"]["name"],
        "method": spec["method"],
        "algorithm": (spec["sparsity"] or {"algorithm": "dense"})["algorithm"],
        "family": spec.get("transform", {}).get("family"),
        "sparsity": spec["final_sparsity"],
        "seed": spec["seed"],
        "scale": spec["scale"],
        "recipe": recipe.get("name"),
        "data_hash": (record.get("data") or {}).get("hash"),
        "spec_hash": record.get("spec_hash"),
        "code_hash": record.get("code_hash"),
        "cpu": record.get("cpu"),
        "num_threads": record.get("num_threads"),
        "versions": "; ".join(f"{name} {versions[name]}" for name in sorted(versions)),
        "command": record.get("command"),
        "committed": False,
    }


def _training_metrics(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Metrics that training itself measured."""
    rows: list[dict[str, Any]] = []

    def add(metric: str, value: Any, split: str = "train", better: bool | None = None) -> None:
        if value is not None:
            rows.append(
                {
                    "metric": metric,
                    "value": float(value),
                    "split": split,
                    "task": "training",
                    "higher_is_better": better,
                }
            )

    curve = record["curve"]
    validation = [row for row in curve if row["kind"] == "validation"]
    train = [row for row in curve if row["kind"] == "train"]
    add("loss", record.get("final_loss"), better=False)
    if validation:
        add("loss", validation[-1].get("loss"), "validation", False)
        add("perplexity", validation[-1].get("perplexity"), "validation", False)
        add("accuracy", validation[-1].get("accuracy"), "validation", True)
        floor = record["data"].get("floor_nats_per_token")
        if floor is not None:
            add("floor_loss", floor, "validation")
            add("excess_loss", validation[-1]["loss"] - floor, "validation", False)
    if train:
        add("steps", train[-1].get("step"))
        for unit in UNITS:
            add(unit, train[-1].get(unit))
    flops = record.get("flops") or {}
    executed, dense = flops.get("executed"), flops.get("dense_equivalent")
    add("flops_executed", executed, better=False)
    add("flops_dense_equivalent", dense)
    if executed and dense:
        add("flops_ratio", executed / dense, better=False)
    step = (record.get("transform") or {}).get("dense_step")
    if executed and step and train:
        untransformed = step * train[-1]["step"]
        add("flops_untransformed", untransformed)
        add("flops_untransformed_ratio", executed / untransformed, better=False)
    by_part = flops.get("by_part")
    for part, value in by_part.items() if isinstance(by_part, dict) else ():
        if isinstance(value, int | float):
            add(f"flops_part:{part}", value)
    add("wall_s", record.get("wall_s"), better=False)
    add("num_parameters", record.get("num_parameters"))
    add("num_nonzero", record.get("num_nonzero"))
    return rows


def _layer_metrics(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Sparsity, churn and exploration of each sparse weight at the end of training."""
    rows = []
    for layer in record.get("layers") or []:
        for metric in ("sparsity", "target", "churn", "itop"):
            if layer.get(metric) is not None:
                rows.append(
                    {
                        "metric": f"layer_{metric}",
                        "value": float(layer[metric]),
                        "split": "train",
                        "task": f"layer:{layer['name']}",
                    }
                )
    return rows


def _evaluation_metrics(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Scores of ``eval.json``, and means over its tasks with a known chance level.

    One mean over the Open LLM Leaderboard's tasks where all of them were scored, one over the rest.
    """
    rows = []
    for score in (record.get("evaluation") or {}).get("scores", []):
        row = {key: score.get(key) for key in ("task", "metric", "value", "stderr", "split")}
        row |= {key: score.get(key) for key in SCORE_FACTS}
        row["higher_is_better"] = score.get("higher_is_better")
        row["data_hash"] = score.get("data_hash")
        rows.append(row)
    accuracies = [row for row in rows if is_accuracy(row["metric"]) and row["value"] is not None]
    whole = whole_tasks(row["task"] for row in accuracies)
    by_task: dict[str, dict[str, Any]] = {}
    for row in accuracies:
        if row["task"] in whole and row["chance"] is not None:
            wanted = LEADERBOARD.get(row["task"], row["metric"])
            if row["metric"] == wanted:
                by_task.setdefault(row["task"], row)
    ours = [row for task, row in by_task.items() if task not in LEADERBOARD]
    theirs = [row for task, row in by_task.items() if task in LEADERBOARD]
    if ours:
        rows.append({"task": "average", "metric": "accuracy_mean", **_average(ours)})
    if len(theirs) == len(LEADERBOARD):
        rows.append({"task": "leaderboard", "metric": "leaderboard_mean", **_average(theirs)})
    return rows


def whole_tasks(names: Iterable[str]) -> set[str]:
    """Return the names without parts of a group: ``blimp`` stands for ``blimp_wh_island``."""
    names = set(names)
    return {
        name
        for name in names
        if not any(name != group and name.startswith(f"{group}_") for group in names)
    }


def _average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Unweighted mean over tasks; the tasks' items are independent, so variances add."""
    errors = [row["stderr"] for row in rows]
    chances = [row["chance"] for row in rows]
    cut = [row.get("truncated_fraction") for row in rows]
    count = len(rows)
    return {
        "value": float(np.mean([row["value"] for row in rows])),
        "stderr": None if None in errors else float(np.sqrt(np.sum(np.square(errors))) / count),
        "chance": None if None in chances else float(np.mean(chances)),
        "truncated_fraction": None if None in cut else float(np.mean(cut)),
        "num_items": int(sum(row["num_items"] or 0 for row in rows)),
        "higher_is_better": True,
    }


def is_accuracy(metric: str) -> bool:
    """Return whether a harness metric (possibly with a filter, ``acc,none``) is an accuracy."""
    return metric.split(",")[0] in ACCURACY_METRICS


def record_rows(record: dict[str, Any], study: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tidy rows of one record; see ``RECORD_COLUMNS``."""
    identity = _identity(record, study)
    metrics = _training_metrics(record) + _layer_metrics(record) + _evaluation_metrics(record)
    rows = []
    for metric in metrics:
        present = {key: value for key, value in metric.items() if value is not None}
        rows.append(identity | present)
    return rows


def curve_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tidy rows of one record's learning curve; see ``CURVE_COLUMNS``.

    Validation rows carry no FLOPs or seconds of their own: both are interpolated between the
    training rows around them.
    """
    curve = record["curve"]
    train = [row for row in curve if row["kind"] == "train"]
    steps = [row["step"] for row in train]
    rows = []
    for row in curve:
        coordinates = {"run": record["run"], "kind": row["kind"]}
        coordinates |= {"step": row["step"], **{unit: row.get(unit) for unit in UNITS}}
        for name in ("flops_executed", "elapsed_s"):
            known = row.get(name)
            if known is None and train and train[0].get(name) is not None:
                known = float(np.interp(row["step"], steps, [r.get(name) or 0.0 for r in train]))
            coordinates[name] = known
        for metric in CURVE_METRICS:
            if row.get(metric) is not None:
                rows.append(coordinates | {"metric": metric, "value": float(row[metric])})
    return rows


def records_table(records: Iterable[dict[str, Any]], study: dict[str, Any]) -> pd.DataFrame:
    """Return the tidy long table of several records, ordered as the study lists its runs."""
    rows = [row for record in records for row in record_rows(record, study)]
    return _typed(pd.DataFrame(rows, columns=list(RECORD_COLUMNS)))


def curves_table(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return the tidy long table of several learning curves."""
    rows = [row for record in records for row in curve_rows(record)]
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Fix the column types, so that a column without values reads back as it was written."""
    table = table.copy()
    for name in TEXT_COLUMNS:
        table[name] = table[name].astype("string")
    shares = ("truncated_fraction", "unknown_fraction")
    for name in ("value", "stderr", "chance", "sparsity", *shares):
        values = table[name] if name in table else pd.Series(None, index=table.index)
        table[name] = pd.to_numeric(values).astype("float64")
    for name in ("seed", "num_items", "num_fewshot", "num_threads"):
        table[name] = pd.to_numeric(table[name]).astype("Int64")
    for name in ("higher_is_better", "committed"):
        values = table[name] if name in table else pd.NA
        table[name] = pd.Series(values, index=table.index, dtype="boolean")
    return table


def collect(
    record_files: Sequence[Path],
    study: dict[str, Any],
    out: Path,
    *,
    committed: Collection[str] = (),
) -> Path:
    """Write ``records.csv``, ``records.parquet`` and ``curves.csv`` of a study.

    Args:
        record_files: ``record.json`` files; runs whose file does not exist are left out, and the
            report names them.
        study: The study as ``experiments.specs.plan`` describes it.
        out: Folder to write to, or the path of ``records.csv`` in it.
        committed: Ids of the runs whose records are committed ones.

    Returns:
        The path of ``records.csv``.
    """
    folder = out.parent if out.suffix == ".csv" else out
    order = {run["id"]: number for number, run in enumerate(study.get("runs", []))}
    records = [read_json(path) for path in record_files if Path(path).exists()]
    records.sort(key=lambda record: (order.get(record["run"], len(order)), record["run"]))
    folder.mkdir(parents=True, exist_ok=True)
    table = records_table(records, study)
    table["committed"] = table["run"].isin(committed).astype("boolean")
    table.to_csv(folder / "records.csv", index=False)
    table.to_parquet(folder / "records.parquet", index=False)
    curves_table(records).to_csv(folder / "curves.csv", index=False)
    return folder / "records.csv"


def read_table(
    path: Path, columns: Iterable[str], *, dtype: dict[str, Any] | None = None
) -> pd.DataFrame:
    """Read a CSV file that has certain columns.

    Raises:
        ValueError: If it is no CSV file of text, or columns are absent, as in a file of an older
            version; the message names the file.
    """
    try:
        table = pd.read_csv(path, dtype=dtype)
    except ValueError as error:  # empty, cut, or no text
        raise ValueError(f"{path}: not a table: {' '.join(str(error).split())}") from None
    absent = [name for name in columns if name not in table]
    if absent:
        raise ValueError(
            f"{path} has no column {' and '.join(absent)}: another version wrote it, and "
            "`snakemake reproduce` collects it again"
        )
    return table


def read_records(path: Path) -> pd.DataFrame:
    """Read ``records.csv`` with the types of ``RECORD_COLUMNS``.

    Raises:
        ValueError: If it is no such table; the message names the file.
    """
    needed = [name for name in RECORD_COLUMNS if name not in OPTIONAL]
    table = read_table(path, needed, dtype=dict.fromkeys(TEXT_COLUMNS, "string"))
    try:
        return _typed(table)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def read_curves(path: Path) -> pd.DataFrame:
    """Read ``curves.csv``; raises `ValueError` as `read_records` does."""
    text = dict.fromkeys(("run", "kind", "metric"), "string")
    return read_table(path, CURVE_COLUMNS, dtype=text)


def computed(scale: str, name: str, table: str) -> pd.DataFrame:
    """Read one table of a computation; see `experiments.computations`.

    Raises:
        ValueError: If the computation has not been made at this scale, or has no such table.
    """
    path = Path("results") / scale / "computations" / name / f"{table}.csv"
    if not path.is_file():
        raise ValueError(
            f"{path} is missing: run `python -m experiments compute {name} "
            f"--scale {scale}`, or correct the table's name"
        )
    return pd.read_csv(path)


def missing_runs(records: pd.DataFrame, study: dict[str, Any]) -> list[str]:
    """Return the ids of the study's runs that have no record, in the study's order."""
    present = set(records["run"])
    return [run["id"] for run in study.get("runs", []) if run["id"] not in present]


def select(
    records: pd.DataFrame, metric: str, *, split: str | None = None, task: str | None = None
) -> pd.DataFrame:
    """Return one row per run of a metric: the evaluation's where it exists, else training's.

    Args:
        records: Tidy records.
        metric: Name of the metric.
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
    """Return one row per run: perplexity on the validation split (else on the test split)."""
    rows = select(records, "perplexity", split="validation")
    return rows if len(rows) else select(records, "perplexity", split="test")


def cells(records: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the (model, dataset) pairs of the records, in the order they occur."""
    pairs = records[["model", "dataset"]].drop_duplicates()
    return [(row.model, row.dataset) for row in pairs.itertuples()]


def in_cell(table: pd.DataFrame, cell: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of one (model, dataset) pair."""
    return table[(table["model"] == cell[0]) & (table["dataset"] == cell[1])]


def mask_sparsity(curves: pd.DataFrame) -> "pd.Series[float]":
    """Return run to the sparsity of its masked weights when it ended; dense runs have none."""
    rows = curves[(curves["metric"] == "sparsity") & (curves["kind"] == "train")]
    return rows.sort_values("step").groupby("run")["value"].last()


def treatments(records: pd.DataFrame) -> list[tuple[str, float]]:
    """Return the (method, sparsity) pairs of the records, in the order they occur."""
    pairs = records[["method", "sparsity"]].drop_duplicates()
    return [(row.method, float(row.sparsity)) for row in pairs.itertuples()]


def by_seed(rows: pd.DataFrame) -> dict[int, float]:
    """Return seed to value; several rows of one seed are averaged."""
    means = rows.dropna(subset=["value"]).groupby("seed")["value"].mean()
    return {int(seed): float(value) for seed, value in means.items()}


def label_curves(curves: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Add what tells runs apart to each row of the curves."""
    columns = "run method algorithm family sparsity model dataset recipe seed".split()
    runs = records[columns].drop_duplicates("run")
    return curves.merge(runs, on="run", how="inner")
