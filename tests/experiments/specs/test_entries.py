"""A file of a study's folder of entries is a method and its grids."""

import re
from pathlib import Path

import pytest
import yaml

from experiments.specs import read
from experiments.specs.expand import study_runs
from experiments.specs.schema import SpecError

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "race.md").read_text()
ENTRY = re.search(r"^```yaml\n# experiments/race/my-entry.yaml\n(.*?)^```", PAGE, re.M | re.S)[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The study `race` with the entry that its page shows, alone."""
    monkeypatch.setattr(read, "ENTRIES", tmp_path)
    (tmp_path / "race").mkdir()
    (tmp_path / "race.yaml").write_text((read.STUDIES / "race.yaml").read_text())
    return tmp_path


def load(folder, text=ENTRY, name="my-entry"):
    (folder / "race" / f"{name}.yaml").write_text(text)
    return read.load_study("race", folder=folder)


def changed(**values):
    return yaml.safe_dump({**yaml.safe_load(ENTRY), **values})


def test_the_entry_of_the_page_is_a_method_with_two_budgets(folder):
    study = load(folder)
    runs = {run.spec.recipe.name: run.spec for run in study_runs(study, "small")}
    assert set(runs) == {"whole", "half"}
    whole, half = runs["whole"], runs["half"]
    assert whole.method == "my-entry" and whole.final_sparsity == 0.5
    assert whole.recipe.tokens == 4000000 and half.recipe.tokens == 2000000
    assert whole.recipe.fused and whole.recipe.validations == 8  # the entry's, and the study's
    assert half.sparsity["update"]["stop"] == round(0.75 * half.recipe.steps)
    (smoke,) = study_runs(study, "smoke")
    assert smoke.spec.recipe.steps == 8192 // (16 * 32) and smoke.spec.data.name == "grammar"


def test_every_file_of_the_folder_adds_a_method(folder):
    load(folder)
    study = load(folder, changed(seeds={"whole": 2}, core_seconds=10), "other")
    assert list(study.methods) == ["my-entry", "other"]
    costs = [run.core_seconds for run in study_runs(study, "small")]
    assert costs == [150, 75, 10, 10]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (changed(speed=3), "my-entry.yaml: unknown key speed"),
        (changed(model={"name": "llama", "label": "x", "width": 3}), "unknown key model.width"),
        (changed(seeds={"double": 1}), "my-entry.yaml: seeds is 'double'"),
        (ENTRY.replace("by:", "of:"), "my-entry.yaml: unknown key of"),
    ],
)
def test_what_is_wrong_with_an_entry_is_one_sentence(folder, text, sentence):
    with pytest.raises(SpecError) as error:
        load(folder, text)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_an_entry_may_not_have_the_name_of_a_method(folder):
    path = folder / "race.yaml"
    path.write_text(path.read_text() + "\nmethods: {my-entry: {recipe: whole}}\n")
    with pytest.raises(SpecError, match="'my-entry' is an entry and a method"):
        load(folder)


def test_runs_are_planned_anew_when_an_entry_changes():
    files = read.study_files()
    assert ROOT / "experiments" / "race" / "dense-window.yaml" in files
