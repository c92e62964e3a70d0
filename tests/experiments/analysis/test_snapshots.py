"""Tables, and what figures draw, from a frozen records file: a change of any number shows.

``UPDATE_SNAPSHOTS=1`` rewrites the expected files; read the difference before committing it.
"""

import json
import os
from pathlib import Path

import pytest

from experiments.analysis import figures, tables
from experiments.store import tidy
from tests.experiments.analysis import synthetic

FROZEN = Path(__file__).with_name("frozen")
TABLES = ["architecture", "config_changes", "configs", "dense_comparison", "evaluation", "flops"]
TABLES += ["hyperparameters", "lm_eval", "perplexity", "runs"]
FIGURES = ["budgets", "perplexity_by_method", "perplexity_by_sparsity", "scaling"]


@pytest.fixture(scope="module")
def frozen():
    facts = json.loads((FROZEN / "study.json").read_text())
    study = synthetic.planned([run["spec"] for run in facts.pop("runs")], **facts)
    rows = tidy.read_records(FROZEN / "records.csv.gz")
    return rows, tidy.read_curves(FROZEN / "curves.csv.gz"), study


def check(name, table):
    path = FROZEN / f"{name}.csv"
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", TABLES)
def test_table(name, frozen, tmp_path):
    check(name, tidy.pd.read_csv(tables.write(name, *frozen, tmp_path)))


@pytest.mark.parametrize("name", FIGURES)
def test_figure(name, frozen):
    rows = figures.shown(name, frozen[0], frozen[2])
    check(f"figure_{name}", figures.load(name).data(rows, *frozen[1:]))
    path = FROZEN / f"figure_{name}.txt"
    caption = figures.caption(name, *frozen)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(caption + "\n")
    assert caption + "\n" == path.read_text()
