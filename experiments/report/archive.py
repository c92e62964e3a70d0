"""Snakemake's own report, as a file that names no machine."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.errors import UserError


def write(scale: str, config: Sequence[str], out: Path) -> None:
    """Write Snakemake's report of a scale: figures with captions by study, rules and run times.

    Args:
        scale: Name of the scale; its pages must be finished.
        config: What else the workflow was asked for, each ``key=value``; another request would
            have other inputs.
        out: HTML file to write.

    Raises:
        RuntimeError: If Snakemake makes no report; the message is its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "archive.html"
        chosen = ["--config", f"scale={scale}", *config]
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", f"reports/{scale}/index.html"]
            + ["--report", str(made), *chosen],
            capture_output=True,
            text=True,
        )
        if done.returncode or not made.is_file():
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise UserError(f"snakemake --report failed: {lines[-1] if lines else 'no output'}")
        out.write_text(without_paths(made.read_text(encoding="utf-8")), encoding="utf-8")


def without_paths(text: str) -> str:
    """Return a text without the paths of this Python, of this folder and of the user's home."""
    names = {sys.executable: "python", f"{sys.prefix}/": "", f"{Path.cwd()}/": ""}
    names |= {str(Path.cwd()): ".", f"{Path.home()}/": ""}
    for path, name in names.items():
        text = text.replace(path, name)
    return text
