"""After any kill, the same command finishes, and the weights have the same bits."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.specs import plan

pytestmark = pytest.mark.slow
STUDY = plan.load_study("sparsity_library")
RUN = next(r for r in plan.study_runs(STUDY, "smoke") if r.spec.method == "rigl")
TARGET = f"results/smoke/runs/{RUN.id}/train.json"
WEIGHTS = f"results/smoke/runs/{RUN.id}/model/model.safetensors"
COMMAND = [
    sys.executable, "-m", "snakemake", "--snakefile", str(plan.ROOT / "Snakefile"),
    "--workflow-profile", str(plan.ROOT / "profiles" / "default"), "--cores", "1", TARGET,
]  # fmt: skip


def start(folder: Path) -> subprocess.Popen:
    """Snakemake in a process group of its own, as in a terminal."""
    return subprocess.Popen(
        [*COMMAND, "--directory", str(folder)],
        cwd=folder,
        env={**os.environ, "SPARSE_SAVE_EVERY_S": "0.1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(folder: Path) -> str:
    """Run the same command to its end; returns what it printed."""
    process = start(folder)
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, text
    assert not list((folder / "state").glob("*/state-*.pt"))
    return text


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def wait_for_state(folder: Path, process: subprocess.Popen) -> None:
    """Return in the middle of the training, after a state has been saved."""
    deadline = time.monotonic() + 120
    while not list((folder / "state").glob("*/state-*.pt")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "no state was saved in two minutes"
        time.sleep(0.02)


def trainer_of(folder: Path) -> psutil.Process:
    """The training process that works in this folder."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = process.info["cmdline"] or []
        if "experiments" in line and "train" in line and process.info["cwd"] == str(folder):
            return process
    raise AssertionError("no trainer is running")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("whole")
    finish(folder)
    return folder, weights(folder)


def fresh(tmp_path: Path, uninterrupted: tuple[Path, str]) -> Path:
    """A folder with the data prepared, so that each test waits for the training only."""
    import shutil

    shutil.copytree(uninterrupted[0] / "resources", tmp_path / "resources")
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_to_all_processes_saves_and_resumes(tmp_path, uninterrupted, number):
    folder = fresh(tmp_path, uninterrupted)
    process = start(folder)
    wait_for_state(folder, process)
    os.killpg(process.pid, number)
    process.communicate(timeout=120)
    # On a slow machine Snakemake may retry the job before it sees its own signal.
    assert (folder / TARGET).exists() or list((folder / "state").glob("*/state-*.pt"))
    finish(folder)
    log = next((folder / "logs" / "train").rglob("*.log")).read_text()
    assert "resumes at step" in log
    assert weights(folder) == uninterrupted[1]


def test_a_killed_snakemake_leaves_a_trainer_that_is_not_doubled(tmp_path, uninterrupted):
    folder = fresh(tmp_path, uninterrupted)
    process = start(folder)
    wait_for_state(folder, process)
    process.kill()
    process.wait()
    finish(folder)
    assert weights(folder) == uninterrupted[1]


def test_a_killed_trainer_is_resumed(tmp_path, uninterrupted):
    folder = fresh(tmp_path, uninterrupted)
    process = start(folder)
    wait_for_state(folder, process)
    trainer_of(folder).kill()
    process.communicate(timeout=240)
    finish(folder)
    log = next((folder / "logs" / "train").rglob("*.log")).read_text()
    assert "resumes at step" in log
    assert weights(folder) == uninterrupted[1]


def test_two_workflows_cannot_share_results(tmp_path, uninterrupted):
    folder = fresh(tmp_path, uninterrupted)
    first = start(folder)
    wait_for_state(folder, first)
    second = start(folder)
    text, _ = second.communicate(timeout=120)
    assert second.returncode != 0
    assert "another snakemake is working on results/" in text
    text, _ = first.communicate(timeout=240)
    assert first.returncode == 0, text
    assert weights(folder) == uninterrupted[1]
