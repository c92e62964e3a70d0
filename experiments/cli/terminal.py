"""Tables for the terminal: runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from experiments.report.text import is_missing, settled
from experiments.store.record import Record

#: A run's facts that head its column, as `RECORD_COLUMNS` names them.
FACTS = ("model", "dataset", "method", "sparsity", "seed", "recipe", "cpu")


def scores(evaluation: dict[str, Any], title: str) -> Table:
    """The scores of an evaluation, one row each."""
    table = Table(title=escape(title))
    for name in ("task", "metric", "split", "value", "stderr", "chance", "items"):
        table.add_column(name)
    for score in evaluation["scores"]:
        names = (score["task"], score["metric"], score.get("split") or "")
        facts = [score.get(key) for key in ("value", "stderr", "chance", "num_items")]
        why = [score["reason"]] if score.get("reason") else []  # in place of a value
        table.add_row(*map(escape, names), *why, *map(_text, facts[len(why) :]))
    return table


def compare(named: Sequence[tuple[str, Record]]) -> Table:
    """Facts and metrics of some records, one column each; a metric that one lacks stays empty."""
    import pandas as pd

    from experiments.store.collect import record_rows

    table = Table(title="Runs side by side")
    table.add_column("")
    for name, _ in named:
        table.add_column(name, overflow="fold")
    records = [record for _, record in named]
    rows = [pd.DataFrame(record_rows(record, "")) for record in records]
    table.add_row("run", *(record.run for record in records))
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


def _text(value: Any) -> str:
    if is_missing(value):
        return ""
    return f"{settled(value):.6g}" if isinstance(value, float) else str(value)
