"""Each diff of `docs/change-one-thing.md` applies, and changes the runs that its heading says."""

import re
import shutil
from pathlib import Path

import pytest

from experiments.specs.expand import all_runs

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "change-one-thing.md").read_text()
DIFFS = re.findall(r"^\*\*([^*]+)\*\*:.*?^```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
#: Runs of sparsity_library that each change adds under new ids, and that it alters under old ones.
CHANGES = {
    "Another sparsity": (3, 0),
    "More seeds": (4, 0),
    "More tokens": (0, 15),
    "Another learning rate for one method": (0, 3),
    "Another model": (15, 0),
}


def hashes(folder):
    runs = all_runs("quick", folder=folder)
    return {name: run.spec_hash for name, run in runs.items() if "sparsity_library" in run.studies}


def test_the_page_has_each_change_once():
    assert [heading for heading, _ in DIFFS] == list(CHANGES)


@pytest.mark.parametrize(("heading", "diff"), DIFFS, ids=[heading for heading, _ in DIFFS])
def test_a_diff_changes_what_it_says(heading, diff, tmp_path):
    shutil.copytree(ROOT / "experiments" / "studies", tmp_path, dirs_exist_ok=True)
    study = tmp_path / "sparsity_library.yaml"
    before, text = hashes(tmp_path), study.read_text()
    old, new = (
        "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] == s) for s in "-+"
    )
    assert text.count(old) == 1
    study.write_text(text.replace(old, new))
    after = hashes(tmp_path)
    altered = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert (len(after.keys() - before.keys()), len(altered)) == CHANGES[heading]
