"""The README's block is written from the ledgers and nothing else changes."""

import pytest

from experiments.report import readme
from tests.experiments.report.example import make_site


def test_the_block_shows_primary_verdicts_and_the_rest_stays(tmp_path):
    reports, _ = make_site(tmp_path)
    path = tmp_path / "README.md"
    path.write_text(f"# Title\n\n{readme.BEGIN}\nold words\n{readme.END}\n\nlast line\n")
    for _ in range(2):
        readme.update(path, reports, "quick", tmp_path / "results" / "quick", {})
    text = path.read_text()
    assert text.startswith("# Title\n") and text.endswith("\n\nlast line\n")
    assert "old words" not in text and text.count("| primary claim |") == 1
    assert "scale `quick`" in text and "| C002: " in text and "| **holds** |" in text


def test_a_readme_without_the_block_is_one_sentence(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# Title\n")
    with pytest.raises(ValueError, match="must hold the lines"):
        readme.update(path, tmp_path, "quick", tmp_path, {})
    assert path.read_text() == "# Title\n"
