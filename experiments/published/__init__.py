"""The sources' numbers, read from ``experiments/published``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from experiments.specs.schema import PlannedStudy

FOLDER = Path(__file__).resolve().parent
UNKNOWN = "–"
TEXT = "string"
#: Words for the column ``confidence`` of ``results.csv``.
HOW = {
    "read-secondary": "read second hand",
    "read-row-order-inferred": "order of rows inferred",
    "digitised-figure": "digitised from a figure",
    "computed": "computed from what was published",
}


@functools.cache
def results() -> pd.DataFrame:
    """All published values as text, one per row."""
    import pandas as pd

    return pd.read_csv(FOLDER / "results.csv", dtype=TEXT, keep_default_na=False)


def source_id(study: PlannedStudy) -> str | None:
    """The id of a study's source: the one whose name the study's source begins with."""
    rows = results()
    for row in rows[["source_id", "source"]].drop_duplicates().itertuples():
        if study.source.startswith(row.source):
            return row.source_id
    return None


@functools.cache
def value(
    source: str | None,
    *,
    metric: str,
    method: str = "",
    sparsity: float | None = None,
    with_place: bool = False,
) -> str:
    """A published value as its source prints it, or `UNKNOWN` where we hold none.

    How it was got stands behind it, unless it was read where it was published.

    Args:
        method: Method as the source names it, in any case and order of words, with or without
            parentheses; empty matches any.
        with_place: Whether its model and data stand behind it; then all models count.
    """
    rows = results()
    rows = rows[(rows["source_id"] == source) & (rows["metric"] == metric)]
    if method:
        rows = rows[rows["method"].map(_words) == _words(method)]
    if sparsity is not None:
        import pandas as pd

        rows = rows[pd.to_numeric(rows["sparsity"], errors="coerce") == sparsity]
    if rows.empty:
        return UNKNOWN
    said = []
    for row in (rows if with_place else rows.iloc[:1]).to_dict("records"):
        # Some ratios are printed with their unit.
        text = row["value"] if "x" in row["value"] else f"{row['value']} {row['unit']}".strip()
        text += f" ({row['model']}, {row['dataset']})" * with_place
        said.append(text if row["confidence"] == "read" else f"{text} ({HOW[row['confidence']]})")
    return "; ".join(said)


def _words(method: str) -> str:
    return " ".join(sorted(method.lower().replace("(", " ").replace(")", " ").split()))
