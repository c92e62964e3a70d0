"""Tables for the terminal: runs side by side, and the claims ledger."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from experiments.analysis import records as tidy

#: A run's facts that head its column, as `RECORD_COLUMNS` names them.
FACTS = ("model", "dataset", "method", "sparsity", "seed", "recipe", "cpu")
SHOWN = ("role", "verdict", "statement", "tested_as", "effect", "interval", "num_seeds", "reason")


def compare(records: Sequence[dict[str, Any]]) -> Table:
    """Facts and metrics of some runs, one column each; a metric that a run lacks stays empty."""
    table = Table(title="Runs side by side")
    table.add_column("")
    for number in range(1, len(records) + 1):
        table.add_column(f"run {number}", overflow="fold")
    rows = [pd.DataFrame(tidy.record_rows(record, {"name": ""})) for record in records]
    table.add_row("run", *(record["run"] for record in records))
    for fact in FACTS:
        table.add_row(fact, *(_text(frame[fact].iloc[0]) for frame in rows))
    table.add_section()
    values = [
        {(row.task, row.split or "", row.metric): row.value for row in frame.itertuples()}
        for frame in rows
    ]
    for key in dict.fromkeys(key for column in values for key in column):
        name = " ".join(str(part) for part in key if isinstance(part, str) and part)
        table.add_row(name, *(_text(column.get(key)) for column in values))
    return table


def ledger(claims: pd.DataFrame, verdicts: Iterable[str] | None = None) -> Table:
    """The claims ledger; `verdicts` keeps only some."""
    table = Table(title="Claims")
    table.add_column("claim")
    for name in SHOWN:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in claims.to_dict("records"):
        if verdicts is None or row["verdict"] in verdicts:
            table.add_row(row["id"], *(_text(row[name]) for name in SHOWN))
    return table


def _text(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
