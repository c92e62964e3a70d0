"""A run's curve in a tracker and its steps in a bar; the result does not depend on either."""

import io
import json
import sys
import types

import pytest
import torch
from safetensors.torch import load_file

from experiments.cli import app as commands
from experiments.errors import UserError
from experiments.training import single
from experiments.training.watch import Watch
from tests.sparse_lib.integrations.test_trackers import Terminal, points_of


def test_the_curve_of_a_run_is_in_tensorboards_files(params, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(sys, "stderr", Terminal())
    arguments = ["run", "-p", str(params), "-o", str(tmp_path / "a"), "--max_steps", "4"]
    commands.app([*arguments, "--track", "tensorboard"], standalone_mode=False)
    assert "4/4" in sys.stderr.getvalue() and "loss=" in sys.stderr.getvalue()
    found = points_of(tmp_path / "a/tracks")
    lines = (tmp_path / "a/metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    assert [step for step, _ in found["train/loss"]] == [row["step"] for row in rows]
    assert [v for _, v in found["train/loss"]] == pytest.approx([row["loss"] for row in rows])
    assert found["train/sparsity"] and found["validation/perplexity"]

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    single.run("train", params, tmp_path / "b", max_steps=4)
    assert sys.stderr.getvalue() == "" and not (tmp_path / "b/tracks").exists()
    first, second = (load_file(tmp_path / x / "checkpoint_4.safetensors") for x in "ab")
    assert all(torch.equal(first[name].nan_to_num(), second[name].nan_to_num()) for name in first)


def test_a_tracker_that_fails_is_let_go_of(tmp_path, monkeypatch):
    def log(numbers, step):
        raise OSError(28, "No space left on device")

    full = types.SimpleNamespace(init=lambda **_: None, log=log, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "trackio", full)
    watch = Watch("trackio", tmp_path)
    watch.begin("run", {}, 0, 4)
    row = {"kind": "train", "step": 3, "loss": 1.0}
    assert "trackio failed and gets no more" in watch.row(row)
    assert watch.row(row) is None


def test_an_unknown_tracker_is_refused_before_anything_else(tmp_path):
    with pytest.raises(UserError, match="track must be one of .*not 'paper'"):
        single.run("train", tmp_path / "missing.yaml", tmp_path / "a", track="paper")
