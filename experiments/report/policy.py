"""The page on the policy of verdicts: docs/policy.md with the simulated rates of false verdicts."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from experiments.report import provenance
from experiments.specs.code import ROOT

PAGE = ROOT / "docs" / "policy.md"
BEGIN = "<!-- simulated rates: written by `snakemake publish` -->"
END = "<!-- end of simulated rates -->"


def filled(text: str, rates: pd.DataFrame) -> str:
    """Return the page with the table of rates between its two marks.

    Args:
        text: The page.
        rates: Table ``rates`` of the computation ``false_verdicts``.

    Raises:
        ValueError: If the page lacks the marks.
    """
    block = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not block.search(text):
        raise ValueError(f"the page of the policy must hold the lines {BEGIN!r} and {END!r}")
    lines = [
        "| family | case | boundary | ledgers | false | 95% interval |",
        "|---|---|---|--:|--:|---|",
    ]
    for row in rates.itertuples():
        lines.append(
            f"| {row.family} | {row.case} | {row.boundary} | {row.ledgers:,} | {row.rate:.2%} "
            f"| {row.low:.2%} to {row.high:.2%} |"
        )
    body = "\n".join(lines)
    return block.sub(lambda _: f"{BEGIN}\n\n{body}\n\n{END}", text)


def write(out: Path, results_dir: Path, *, page: Path = PAGE) -> None:
    """Write the page beside a report.

    Args:
        out: File to write.
        results_dir: ``results/<scale>``; where it lacks the computation the page stays as it is.
        page: The page to fill.
    """
    text = page.read_text(encoding="utf-8")
    rates = results_dir / "computations" / "false_verdicts" / "rates.csv"
    if provenance.has_rows(rates):
        text = filled(text, pd.read_csv(rates))
    out.write_text(text, encoding="utf-8")
