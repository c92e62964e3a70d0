"""The `flops` computation against numbers of the sources, and committed tables in its place."""

import io

import pandas as pd
import pytest

from experiments import computations
from experiments.cli import train
from experiments.computations import flops
from experiments.store import paths


@pytest.fixture(scope="module")
def tables():
    return flops.compute("smoke")


def test_committed_tables_are_those_that_are_computed(tables):
    for name, table in tables.items():
        committed = pd.read_csv(paths.REFERENCE / "flops" / f"{name}.csv", keep_default_na=False)
        made = pd.read_csv(io.StringIO(table.to_csv(index=False)), keep_default_na=False)
        pd.testing.assert_frame_equal(made, committed, check_dtype=False)


@pytest.fixture(scope="module")
def rows(tables):
    return tables["published"]


def test_every_number_is_met_or_named_as_open(rows):
    chosen = rows[rows["source"] == "SPARSE_IFT_ICML24"].dropna(subset=["counted as published"])
    budgets = dict(zip(chosen["model"], chosen["counted as published"], strict=True))
    imagenet = {"ResNet-18 ImageNet": 3647128359, "ResNet-34 ImageNet": 7355270501}
    assert budgets == {"ResNet-18 CIFAR": 1115226800, **imagenet}
    # Open rows are known: a rise is a defect, a fall means that this list must shrink.
    open_rows = rows[~rows["met"]]
    assert set(zip(open_rows["source"], open_rows["method"], strict=True)) == {
        ("CB_IFT_BLOG", "dense")
    }
    assert (rows.loc[rows["difference"].abs() > 0.01, "explanation"] != "").all()


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
