"""Numbers arrive once per step, bars are for terminals, and targets beyond the end are told."""

import io
import sys

import pytest
import torch

import sparse_lib as sl
from sparse_lib.integrations.trackers import Follower, progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def followed(steps, algorithm=None, **options):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsity = sl.Group({"weight": algorithm or sl.SET(0.75, update=2, seed=0)})
    sparsity.apply(model)
    sparsity.apply(optimizer)
    follower = Follower(sparsity, optimizer, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    follower.close()
    optimizer.step()  # followed no more
    return sparsity


def test_metrics_of_an_algorithm_are_logged_at_their_steps():
    found = []
    followed(6, log=lambda numbers, step: found.append((step, numbers)), every=2)
    assert [(step, n["sparsity/sparsity"]) for step, n in found] == [
        (2, 0.75),
        (4, 0.75),
        (6, 0.75),
    ]
    assert found[0][1]["sparsity/churn"] > 0
    with pytest.raises(ValueError, match="every must be at least 1, not 0"):
        followed(1, every=0)


def test_targets_beyond_the_end_are_told_before_training():
    cubic = {"type": "cubic", "init_sparsity": 0.0, "end_sparsity": 0.9}
    cubic |= {"sparsity_start_step": 0, "sparsity_end_step": 100}
    # 1 - (1 - 20 / 100)^3 of 0.9 at the last update.
    with pytest.warns(UserWarning, match="at a sparsity of 0.44 .* step 20 of 20, .*0.90"):
        followed(1, sl.GMP(cubic, update=10), num_steps=20)


def test_targets_that_accumulation_left_behind_are_told_at_the_end():
    cubic = {"type": "cubic", "init_sparsity": 0.0, "end_sparsity": 0.9}
    cubic |= {"sparsity_start_step": 0, "sparsity_end_step": 16}
    # 16 batches make 4 steps: 1 - (1 - 4 / 16)^3 of 0.9.
    with pytest.warns(UserWarning, match="at a sparsity of 0.52 .* step 4 of 4, .*0.90"):
        followed(4, sl.GMP(cubic, update=2), num_steps=16)


def test_bars_are_drawn_on_terminals_only(monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress_bar(5) is None
    followed(4, num_steps=4)
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    followed(4, every=2, num_steps=4)
    drawn = sys.stderr.getvalue()
    assert "4/4" in drawn and "sparsity=0.750" in drawn
