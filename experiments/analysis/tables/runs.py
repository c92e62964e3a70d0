"""Every run of the study with its cost. Runs shared their machine, so seconds do not compare."""

from typing import Any

import pandas as pd

from experiments.specs.lookup import rerun_command
from experiments.specs.schema import PlannedStudy

EVERY_RECIPE = True
#: Columns that tell a run from others.
IDENTITY = ("model", "method", "algorithm", "family", "sparsity", "recipe", "seed")
#: Columns to what tidy records call them: texts, and whole numbers among the metrics.
FACTS = {"data": "dataset", "data hash": "data_hash", "machine": "machine", "processor": "cpu"}
FACTS |= {"threads": "num_threads", "versions": "versions", "command": "command"}
COUNTS = {"steps": "steps", "tokens": "tokens", "images": "images"}
COUNTS |= {"non-zero parameters": "num_nonzero"}
METRICS = ("wall_s", *COUNTS.values())
COLUMNS = ["run", "status", *IDENTITY, "data", "data hash", "steps", "tokens", "images"]
COLUMNS += ["non-zero parameters", "wall time (s)", "machine", "processor", "threads", "versions"]
COLUMNS += ["command"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per run, in the study's order."""
    training = records[(records["task"] == "training") & records["metric"].isin(METRICS)]
    measured = training.pivot_table("value", "run", "metric")
    facts = training.drop_duplicates("run").set_index("run")
    planned = {run.id: run for run in study.runs}
    rows = []
    for run in [*planned, *(run for run in facts.index if run not in planned)]:
        if run in facts.index:
            rows.append(_row(run, facts.loc[run], measured.loc[run]))
        else:
            row = {"run": run, "status": "missing", **planned[run].spec.labels}
            rows.append(row | {"command": rerun_command([run])})
    table = pd.DataFrame(rows, columns=COLUMNS)
    unseen = [unit for unit in ("tokens", "images") if table[unit].isna().all()]
    return table.drop(columns=unseen)


def _row(run: str, facts: pd.Series, measured: pd.Series) -> dict[str, Any]:
    row = {"run": run, "status": "finished", "wall time (s)": measured.get("wall_s")}
    row |= {name: facts[name] for name in IDENTITY}
    row |= {name: facts[key] for name, key in FACTS.items()}
    return row | {name: _count(measured.get(key)) for name, key in COUNTS.items()}


def _count(value: float | None) -> int | None:
    return None if value is None or value != value else int(value)
