"""Every script of `examples/` runs, stays short, and does what its first line says."""

import gc
import runpy
from pathlib import Path
from statistics import mean

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield lambda name: runpy.run_path(str(FOLDER / name))["main"]()
    gc.collect()  # algorithms that a script defines leave the registry


def test_every_script_is_short_and_listed():
    listed = (FOLDER / "README.md").read_text()
    for name in SCRIPTS:
        assert len((FOLDER / name).read_text().splitlines()) < 80, name
        assert f"]({name})" in listed, name


def test_rigl_learns_at_ninety_percent(run):
    result = run("train_with_rigl.py")
    assert result["accuracy"] > 0.8  # half of the points are right by chance
    assert result["sparsity"] == pytest.approx(0.9, abs=1e-3)


def test_zeros_of_a_pruned_model_stay_while_it_learns(run):
    result = run("fine_tune_pruned.py")
    assert result["revived"] == 0
    assert result["after"] < 0.5 * result["before"]


def test_the_new_algorithm_beats_static_and_is_its_own(run):
    losses = run("new_algorithm.py")
    assert mean(losses["inputset"]) < mean(losses["static"])
    assert losses["inputset"] != losses["set"]
