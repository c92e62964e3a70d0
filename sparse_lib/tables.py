"""Rows of text as tables, the first row of which is the heading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = Sequence[str]


def plain(rows: Sequence[Row], num_left: int) -> str:
    """Columns of equal width, the first ``num_left`` of which begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (
        [c.ljust(w) if i < num_left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        for row in rows
    )
    return "\n".join("  ".join(cells).rstrip() for cells in aligned)


def markdown(heading: Row, rows: Iterable[Row]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows)]
