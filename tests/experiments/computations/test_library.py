"""The `library` computation: its cases can fail, and its timing times what it says."""

import pytest
import torch

from experiments.computations import library
from sparse_lib.core import guard as enforcement
from sparse_lib.schedules.values import Cubic


def missed(rows):
    return [row["case"] for row in rows if row["expected"] != row["found"]]


@pytest.mark.parametrize("rule", library.RULES, ids=lambda rule: rule.__name__)
def test_every_case_is_as_the_source_says(rule):
    rows = list(rule())
    assert rows and not missed(rows)


def test_a_library_that_leaves_gradients_unmasked_is_found_out(monkeypatch):
    monkeypatch.setattr(enforcement.MaskGuard, "select_gradient", lambda guard: None)
    wrong = missed(library.invariant_rows())
    assert len(wrong) == 12 and not any(case.startswith("Static") for case in wrong)


def test_a_schedule_off_the_formula_is_found_out(monkeypatch):
    monkeypatch.setattr(Cubic, "compute", lambda schedule, step: schedule.end_sparsity)
    assert len(missed(library.cubic_rows())) == 2


def test_rounds_are_paired_and_threads_restored(monkeypatch):
    monkeypatch.setattr(library, "WIDTH", 16)
    monkeypatch.setattr(library, "BATCH", 8)
    threads = torch.get_num_threads()
    rows = list(library.overhead_rows(2))
    assert [(row["method"], row["round"]) for row in rows] == [
        ("Static", 1), ("RigL", 1), ("Static", 2), ("RigL", 2),
    ]  # fmt: skip
    assert all(row["ratio"] > 0.5 for row in rows)
    assert torch.get_num_threads() == threads
