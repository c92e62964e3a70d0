"""The slurm profile on a real Slurm: what is killed, out of time or on a lost node goes on."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from tests.cluster import slurm
from tests.workflow import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SOAK" not in os.environ, reason="`make soak` starts a Slurm of its own"),
]
RUNS = {run.spec.method: run for run in study_runs(load_study("sparsity_library"), "smoke")}
#: What happens to the job of each method's run.
METHODS = {"scancel": "set", "out of time": "rigl", "drained node": "gmp"}
TARGETS = [f"results/smoke/runs/{RUNS[method].id}/train.json" for method in METHODS.values()]
PATIENCE_S = 900


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("snakemake_executor_plugin_slurm")
    reason = slurm.missing()
    if reason:
        pytest.skip(reason)
    with slurm.cluster() as folder:
        yield folder


def start(folder: Path) -> subprocess.Popen:
    """The workflow with the profile, polling more often than for a real cluster."""
    own = ("--seconds-between-status-checks", "2", "--slurm-no-account", "--latency-wait", "5",
           "--slurm-init-seconds-before-status-checks", "1")  # fmt: skip
    return running.start(folder, *TARGETS, cores=2, profile="slurm", options=own)


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def job_of(run: str) -> tuple[str, str] | None:
    """Number and node of a run's job, if it runs."""
    for line in said("squeue", "-h", "-t", "running", "-o", "%i|%N|%k").splitlines():
        number, node, comment = line.split("|", 2)
        if run in comment:
            return number, node
    return None


def ends() -> dict[str, list[str]]:
    """State, last node and memory of each job, also of those that have ended."""
    lines = said("squeue", "-h", "-t", "all", "-o", "%i|%T|%N|%m").splitlines()
    return {number: facts for number, *facts in (line.split("|") for line in lines)}


def trainer_of(folder: Path, run: str) -> psutil.Process | None:
    """The process that trains a run, once it has saved a state."""
    if list((folder / "state").glob(f"{run}-*/state-*.pt")):
        for process in running.processes(folder):
            if running.role(process) == "train" and running.run_of(process) == run:
                return process
    return None


def befall(incident: str, number: str, node: str) -> None:
    """Let an incident happen to a job."""
    if incident == "scancel":
        said("scancel", number)
    elif incident == "out of time":
        said("scontrol", "update", f"JobId={number}", "EndTime=now")
    else:
        said("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
        said("scontrol", "requeue", number)


def test_jobs_that_end_early_go_on_and_end_with_the_same_bits(cluster, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "folder"
    running.by_hand(whole, [RUNS[method] for method in METHODS.values()])
    folder.mkdir()
    shutil.copytree(whole / "resources", folder / "resources")
    process, waiting, lost = start(folder), dict(METHODS), {}
    log, deadline = folder / "workflow.log", time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, log.read_text() + said("squeue", "-t", "all")
            for incident, method in list(waiting.items()):
                trainer, job = trainer_of(folder, RUNS[method].id), job_of(RUNS[method].id)
                if trainer is None or job is None:
                    continue
                trainer.suspend()  # it must not end before Slurm ends it
                befall(incident, *job)
                lost[incident] = job
                del waiting[incident]
            time.sleep(0.1)
    finally:
        running.stop(folder)
    assert process.returncode == 0, log.read_text()
    assert not waiting, log.read_text()
    for method in METHODS.values():
        text = (folder / f"logs/train/smoke/{RUNS[method].id}.log").read_text()
        assert "resumes at step" in text, (method, text)
    ended = ends()
    # What a run of 30,000 weights needs, and twice that after a failure; a node has half a machine.
    asked = sorted({int(memory.removesuffix("M")) for _, _, memory in ended.values()})
    assert 1500 <= asked[0] <= 1600 and asked[1:] in ([], [2 * asked[0]]), ended
    states = {"scancel": "CANCELLED", "out of time": "TIMEOUT", "drained node": "COMPLETED"}
    for incident, (job, node) in lost.items():
        assert ended[job][0] == states[incident], ended
        if incident == "drained node":  # Slurm queues it again, under its number, elsewhere
            assert ended[job][1] not in ("", node), ended
    assert not running.differences(folder, running.results(whole))
