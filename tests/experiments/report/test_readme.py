"""The README's block is written from the ledgers and nothing else changes."""

import pytest

from experiments.report import readme
from tests.experiments.report.example import make_site

FOUND = {"perplexity_by_sparsity": "Lowest of all: RigL."}


def test_the_block_says_in_a_few_lines_what_came_out_and_the_rest_stays(tmp_path):
    reports, _ = make_site(tmp_path)
    path = tmp_path / "README.md"
    path.write_text(f"# Title\n\n{readme.BEGIN}\nold words\n{readme.END}\n\nlast line\n")
    for _ in range(2):
        readme.update(path, reports, "quick", tmp_path / "results" / "quick", FOUND)
    text = path.read_text()
    assert text.startswith("# Title\n") and text.endswith("\n\nlast line\n")
    block = text[text.index(readme.BEGIN) : text.index(readme.END)]
    assert "old words" not in text and "scale `quick`" in block
    assert "Lowest of all: RigL." in block and "Of " in block
    assert len([line for line in block.splitlines() if line.startswith("- ")]) <= 5


def test_a_readme_without_the_block_is_one_sentence(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# Title\n")
    with pytest.raises(ValueError, match="must hold the lines"):
        readme.update(path, tmp_path, "quick", tmp_path, {})
    assert path.read_text() == "# Title\n"
