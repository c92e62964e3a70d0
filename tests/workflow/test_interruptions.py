"""After a kill, the same command finishes with the same bits; `make soak` kills at random."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from tests.fuzz import killer

pytestmark = pytest.mark.slow
STUDY = load_study("sparsity_library")
RUN = next(run for run in study_runs(STUDY, "smoke") if run.spec.method == "rigl")
PAIR = [run for run in study_runs(STUDY, "smoke") if run.spec.method in ("rigl", "set")]
TARGETS = {run.id: f"results/smoke/runs/{run.id}/train.json" for run in PAIR}
TARGET = TARGETS[RUN.id]


def start(folder: Path, preload: bool = False) -> subprocess.Popen:
    return killer.start(folder, TARGET, save_every_s=0.1, preload=preload)


def states(folder: Path) -> list[Path]:
    return list((folder / "state").glob("*/state-*.pt"))


def finish(folder: Path) -> None:
    """Run the same command to its end."""
    process = start(folder)
    process.wait(timeout=240)
    assert process.returncode == 0, (folder / "workflow.log").read_text()
    assert not states(folder)


def wait_for_state(folder: Path, process: subprocess.Popen) -> None:
    """Return in the middle of the training, after a state has been saved."""
    deadline = time.monotonic() + 120
    while not states(folder):
        assert process.poll() is None, (folder / "workflow.log").read_text()
        assert time.monotonic() < deadline, "no state was saved in two minutes"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A folder where both runs were trained without interruption, and what they computed."""
    folder = tmp_path_factory.mktemp("whole")
    trial = killer.run_trial(
        folder, *TARGETS.values(), seed=0, max_kills=0, mean_delay_s=1, cores=2, preload=True
    )
    assert not trial.problem
    return folder, killer.results(folder)


@pytest.fixture(scope="module")
def uninterrupted(pair) -> dict[str, str]:
    """What `RUN` alone computes."""
    others = TARGETS.keys() - {RUN.id}
    return {k: v for k, v in pair[1].items() if not any(other in k for other in others)}


@pytest.fixture
def folder(tmp_path, pair):
    """With the data prepared, so that each test waits for the training only."""
    shutil.copytree(pair[0] / "resources", tmp_path / "resources")
    yield tmp_path
    killer.stop(tmp_path)


def test_a_signal_to_all_processes_saves_and_resumes(folder, uninterrupted):
    process = start(folder, preload=True)
    wait_for_state(folder, process)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=120)
    # On a slow machine Snakemake may retry the job before it sees its own signal.
    assert (folder / TARGET).exists() or states(folder)
    finish(folder)
    log = next((folder / "logs" / "train").rglob("*.log")).read_text()
    assert "resumes at step" in log
    assert not killer.differences(folder, uninterrupted)


def test_a_killed_snakemake_leaves_trainers_that_are_not_doubled(folder, pair):
    process = killer.start(folder, *TARGETS.values(), save_every_s=0.1, cores=2, preload=True)
    wait_for_state(folder, process)
    process.kill()
    process.wait()
    again = killer.start(folder, *TARGETS.values(), save_every_s=0.1, cores=2)
    assert again.wait(timeout=240) == 0, (folder / "workflow.log").read_text()
    assert not states(folder)
    assert not killer.differences(folder, pair[1])


def test_two_workflows_cannot_share_results(folder, uninterrupted):
    first = start(folder)
    wait_for_state(folder, first)
    os.killpg(first.pid, signal.SIGSTOP)  # it holds the lock however slowly the second starts
    try:
        second = killer.start(folder, TARGET, log="second.log")
        second.wait(timeout=120)
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    assert second.returncode != 0
    assert "another snakemake is working on results/" in (folder / "second.log").read_text()
    first.wait(timeout=240)
    assert first.returncode == 0, (folder / "workflow.log").read_text()
    assert not killer.differences(folder, uninterrupted)
