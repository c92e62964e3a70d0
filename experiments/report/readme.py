"""The README's view of the committed reference: one figure, and what came out in a few lines."""

import re
from collections.abc import Mapping
from pathlib import Path

from experiments.analysis.claims import ledger as claims
from experiments.errors import UserError
from experiments.report import summary
from experiments.report.render import environment

#: Whose findings are stated, in this order: study and figure; the first is shown.
FIGURES = (
    ("sparsity_library", "perplexity_by_sparsity"),
    ("device", "device_speedup"),
)
BEGIN, END = "<!-- reference: written by `snakemake publish` -->", "<!-- end of reference -->"


def update(
    readme: Path, reports_dir: Path, scale: str, results_dir: Path, captions: Mapping[str, str]
) -> None:
    """Replace the README's block on the committed reference.

    Args:
        readme: File with the lines `BEGIN` and `END`; what lies between them is replaced.
        reports_dir: Committed reports, ``<study>/figures/<figure>.png`` in it.
        scale: Name of the scale that was published.
        results_dir: ``results/<scale>``, holding ``<study>/claims.csv``.
        captions: What the data of each figure of `FIGURES` says, by its name.

    Raises:
        ValueError: If the README lacks the two lines.
    """
    text = readme.read_text()
    block = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not block.search(text):
        raise UserError(f"{readme.name} must hold the lines {BEGIN!r} and {END!r}")
    ledgers = {
        path.parent.name: claims.read(path) for path in sorted(results_dir.glob("*/claims.csv"))
    }
    merged = summary.merge_ledgers(ledgers)
    drawn = [
        (study, path.relative_to(readme.parent))
        for study, name in FIGURES
        if (path := reports_dir / study / "figures" / f"{name}.png").is_file()
    ]
    page = environment(html=False).get_template("readme.md.j2")
    body = page.render(
        scale=scale,
        figures=drawn[:1],
        findings=[(study, captions[name]) for study, name in FIGURES if captions.get(name)],
        outcome=summary.outcome(merged),
    )
    readme.write_text(block.sub(lambda _: f"{BEGIN}\n{body.strip()}\n{END}", text))
