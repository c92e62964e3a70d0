"""Computations are read from the small tables in ``computed/<name>``: no pipeline has run here."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.analysis import records

FOLDER = Path(__file__).with_name("computed")


@pytest.fixture(autouse=True)
def computed(monkeypatch):
    """Replaces the folder of results by ours; returns tables that a test may change."""
    tables = {}

    def read(scale, name, table):
        path = FOLDER / name / f"{table}.csv"
        return tables.setdefault((name, table), pd.read_csv(path)).copy()

    monkeypatch.setattr(records, "computed", read)
    return tables
