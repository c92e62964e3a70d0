"""The slurm profile on a real Slurm: what is killed, out of time or on a lost node goes on."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.specs.code import ROOT
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from tests.cluster import slurm
from tests.fuzz import killer

pytestmark = pytest.mark.slow
RUNS = {run.spec.method: run for run in study_runs(load_study("sparsity_library"), "smoke")}
#: What happens to the job of each method's run.
INCIDENTS = ("scancel", "out of time", "lost node")
METHODS = dict(zip(INCIDENTS, ("rigl", "set", "gmp"), strict=True))
TARGETS = [f"results/smoke/runs/{RUNS[method].id}/train.json" for method in METHODS.values()]


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("snakemake_executor_plugin_slurm")
    reason = slurm.install()
    if reason:
        pytest.skip(reason)
    with slurm.cluster() as folder:
        yield folder


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    process = killer.start(folder, *TARGETS)
    assert process.wait(timeout=400) == 0, (folder / "workflow.log").read_text()
    return folder, killer.results(folder)


def start(folder: Path) -> subprocess.Popen:
    """The workflow with the profile, polling more often than for a real cluster."""
    with (folder / "workflow.log").open("w") as stream:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "snakemake", *TARGETS, "--directory", str(folder)),
                *("--snakefile", str(ROOT / "Snakefile")),
                *("--workflow-profile", str(ROOT / "profiles" / "slurm")),
                *("--seconds-between-status-checks", "2", "--slurm-no-account"),
                *("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"),
            ],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SPARSE_SAVE_EVERY_S": "0",
                killer.MARK: str(folder),
            },
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def jobs() -> dict[str, tuple[str, str]]:
    """Run id -> number and node of its running job."""
    found = {}
    for line in said("squeue", "-h", "-t", "running", "-o", "%i|%N|%k").splitlines():
        number, node, comment = line.split("|", 2)
        for run in RUNS.values():
            if run.id in comment:
                found[run.id] = number, node
    return found


def befall(incident: str, number: str, node: str) -> None:
    if incident == "scancel":
        said("scancel", number)
    elif incident == "out of time":
        said("scontrol", "update", f"JobId={number}", "TimeLimit=00:00:01")
    else:
        said("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        said("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_jobs_that_end_early_go_on_and_end_with_the_same_bits(cluster, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0] / "resources", tmp_path / "resources")
    process, waiting = start(tmp_path), dict(METHODS)
    log, deadline = tmp_path / "workflow.log", time.monotonic() + 400
    while process.poll() is None:
        assert time.monotonic() < deadline, log.read_text() + said("squeue", "-t", "all")
        running = jobs()
        for incident, method in list(waiting.items()):
            run = RUNS[method].id
            begun = list((tmp_path / "state").glob(f"{run}-*/state-*.pt"))
            if run in running and begun:
                befall(incident, *running[run])
                del waiting[incident]
        time.sleep(0.05)
    assert process.returncode == 0, log.read_text()
    assert not waiting, log.read_text()
    for method in METHODS.values():
        text = (tmp_path / f"logs/train/smoke/{RUNS[method].id}.log").read_text()
        assert "resumes at step" in text, (method, text)
    assert not killer.differences(tmp_path, uninterrupted[1])
