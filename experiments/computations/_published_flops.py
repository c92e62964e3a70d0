"""Published FLOP counts beside ours, one row each."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from experiments import published

TOLERANCE = 0.01
COLUMNS = ["source", "where", "model", "method", "sparsity", "quantity", "published", "ours"]
COLUMNS += ["difference", "counted as published", "remaining difference", "met", "explanation"]


Row = dict[str, Any]


def row(
    printed: Mapping[str, str],
    ours: float,
    *,
    value: str | None = None,
    quantity: str | None = None,
    as_published: float | None = None,
    explanation: str = "",
) -> Row:
    """One comparison; ``printed`` is a row of ``experiments/published/results.csv``."""
    text = value or printed["value"]
    number = float(text)
    difference = ours / number - 1
    remaining = None if as_published is None else as_published / number - 1
    candidates = [ours] if as_published is None else [ours, as_published]
    same = any(_prints(candidate, text) for candidate in candidates)
    near = any(abs(candidate / number - 1) <= TOLERANCE for candidate in candidates)
    return {
        "source": printed["source_id"],
        "where": printed["table_or_figure"],
        "model": printed["model"],
        "method": printed["method"],
        "sparsity": float(printed["sparsity"] or 0),
        "quantity": quantity or printed["metric"],
        "published": number,
        "ours": ours,
        "difference": difference,
        "counted as published": as_published,
        "remaining difference": remaining,
        "met": same or near,
        "explanation": explanation,
    }


def _prints(value: float, text: str) -> bool:
    """Whether a value, rounded to the digits of a printed one, is that one."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return round(value / 10 ** int(exponent or 0), digits) == float(mantissa)


def published_rows(source: str, metric: str, where: str = "") -> Iterator[dict[str, str]]:
    """Rows of the published values with a number."""
    rows = published.results()
    rows = rows[(rows["source_id"] == source) & (rows["metric"] == metric)]
    for printed in rows.to_dict("records"):
        if printed["table_or_figure"].startswith(where) and re.match(r"[\d.]", printed["value"]):
            yield printed
