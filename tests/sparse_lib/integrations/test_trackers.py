"""Numbers arrive in real event files, once per step, and bars are for terminals."""

import io
import sys
import types

import pytest
import torch

import sparse_lib as sl
from sparse_lib.integrations.trackers import Follower, open_tracker, progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def points_of(folder):
    """Tag to its list of (step, value), as TensorBoard shows them."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def followed(steps, **options):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsity = sl.Group({"weight": sl.SET(0.75, update=2, seed=0)})
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


def test_metrics_of_an_algorithm_are_in_tensorboards_files(tmp_path):
    pytest.importorskip("tensorboard")
    followed(6, tracker="tensorboard", folder=tmp_path, every=2)
    found = points_of(tmp_path)
    assert found["sparsity/sparsity"] == [(2, 0.75), (4, 0.75), (6, 0.75)]
    assert found["sparsity/churn"][0][1] > 0


def test_a_run_that_goes_on_shows_each_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    killed = open_tracker("tensorboard", tmp_path)
    for step in (1, 2, 3, 4):
        killed.log({"loss": float(step)}, step)
    killed.close()
    resumed = open_tracker("tensorboard", tmp_path, first_step=3)  # its state was of step 2
    for step in (3, 4, 5):
        resumed.log({"loss": 10.0 * step}, step)
    resumed.close()
    expected = [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
    assert points_of(tmp_path)["loss"] == expected


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_trackers_of_wandbs_kind_get_init_log_and_finish(name, tmp_path, monkeypatch):
    calls = []
    fake = types.SimpleNamespace(
        init=lambda **options: calls.append(("init", options["project"], options["name"])),
        log=lambda numbers, step: calls.append((step, numbers["sparsity/sparsity"])),
        finish=lambda: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, name, fake)
    followed(4, tracker=name, folder=tmp_path / "mine", every=2)
    assert calls == [("init", "sparse-training", "mine"), (2, 0.75), (4, 0.75), "finish"]


def test_what_is_unknown_or_missing_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must be one of tensorboard, trackio, wandb, not 'tb'"):
        open_tracker("tb", tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match="needs the package trackio, .*pip install trackio"):
        open_tracker("trackio", tmp_path)
    with pytest.raises(ValueError, match="every must be at least 1, not 0"):
        followed(1, every=0)


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
