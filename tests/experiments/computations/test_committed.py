"""Committed tables take the place of computed ones where only committed records count."""

import pytest

from experiments import computations
from experiments.cli import train
from experiments.store import paths


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Committed tables of a computation, and an empty folder."""
    monkeypatch.setattr(paths, "REFERENCE", tmp_path / "reference")
    (tmp_path / "reference" / "device").mkdir(parents=True)
    for table in ("machine", "steps"):
        (tmp_path / "reference" / "device" / f"{table}.csv").write_text(f"device,{table}\n1,2\n")
    monkeypatch.setattr(paths, "computation", lambda scale, name: tmp_path / scale / name)
    made = []

    def write(name, scale, folder):
        made.append(name)

    monkeypatch.setattr(computations, "write", write)
    return tmp_path / "small", made


def test_tables_are_those_that_are_committed(places):
    folder, made = places
    (folder / "device").mkdir(parents=True)
    (folder / "device" / "old.csv").write_text("a\n")
    train.compute("device", scale="small", committed=True)
    assert made == []
    assert {path.name for path in (folder / "device").iterdir()} == {"machine.csv", "steps.csv"}
    assert (folder / "device" / "steps.csv").read_text() == "device,steps\n1,2\n"


@pytest.mark.parametrize(("name", "asked"), [("flops", True), ("device", False)])
def test_all_else_is_computed(places, name, asked):
    folder, made = places
    train.compute(name, scale="small", committed=asked)
    assert made == [name]
    assert not (folder / name).exists()
