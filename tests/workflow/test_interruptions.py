"""After a kill, the same command finishes with the same bits; what the slurm profile submits."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from tests.workflow import running

pytestmark = pytest.mark.slow
PAIR = [
    run
    for run in study_runs(load_study("sparsity_library"), "smoke")
    if run.spec.method in ("rigl", "set")
]
TARGETS = [f"results/smoke/runs/{run.id}/train.json" for run in PAIR]


def start(folder: Path, log: str = "workflow.log") -> subprocess.Popen:
    return running.start(folder, *TARGETS, save_every_s=0.1, log=log, cores=2, preload=True)


def states(folder: Path) -> list[Path]:
    return list((folder / "state").glob("*/state-*.pt"))


def training(folder: Path) -> list[psutil.Process]:
    """Trainers in the middle of their run."""
    if not states(folder):
        return []
    return [process for process in running.processes(folder) if running.role(process) == "train"]


def wait_for(what, folder: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300
    while not what(folder):
        assert process.poll() is None, (folder / "workflow.log").read_text()
        assert time.monotonic() < deadline, "nothing was trained in five minutes"
        time.sleep(0.02)


def results(folder: Path) -> list:
    """The end of each run, apart from times."""
    found = []
    for summary in (folder / target for target in TARGETS):
        made, (scored,) = json.loads(summary.read_text()), summary.parent.glob("scores-*.json")
        rows = map(json.loads, summary.with_name("metrics.jsonl").read_text().splitlines())
        found.append([made[key] for key in ("layers", "num_nonzero", "flops", "execution", "spec")])
        found.append([(row["kind"], row["step"], row["loss"]) for row in rows])
        found.append([entry["scores"] for entry in json.loads(scored.read_text()).values()])
        found.append([path.read_bytes() for path in sorted(summary.parent.glob("model/[a-z]*"))])
    return found


def test_a_workflow_that_is_interrupted_and_killed_ends_with_the_same_bits(tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "folder"
    running.by_hand(whole, PAIR)
    folder.mkdir()
    shutil.copytree(whole / "resources", folder / "resources")
    try:
        process = start(folder)
        wait_for(training, folder, process)

        os.killpg(process.pid, signal.SIGSTOP)  # it holds the lock however slowly another starts
        other = start(folder, log="other.log")
        assert other.wait(timeout=300) != 0
        assert "another snakemake is working on results/" in (folder / "other.log").read_text()
        os.killpg(process.pid, signal.SIGCONT)

        os.killpg(process.pid, signal.SIGINT)  # all processes get it, as by Ctrl-C
        process.wait(timeout=300)
        # On a slow machine Snakemake may retry a job before it sees its own signal.
        assert states(folder) or all((folder / target).exists() for target in TARGETS)

        process = start(folder)
        wait_for(training, folder, process)
        process.kill()  # its trainers go on alone, and the next ones wait for them
        process.wait()
        process = start(folder)
        assert process.wait(timeout=600) == 0, (folder / "workflow.log").read_text()
    finally:
        running.stop(folder)
    logs = [path.read_text() for path in (folder / "logs" / "train").rglob("*.log")]
    assert any("resumes at step" in text for text in logs)
    assert not states(folder)
    assert results(folder) == results(whole)


RUN = next(
    run for run in study_runs(load_study("sparsity_library"), "smoke") if run.spec.method == "set"
)
LOG = f"logs/train/smoke/{RUN.id}.log"
#: Programs of Slurm: each job writes one line into its log and fails.
PROGRAMS = {
    "sbatch": 'echo "$*" >> calls; wc -l < calls\n'
    f'mkdir -p "$(dirname {LOG})"; echo "Error: no GPU here" > {LOG}',
    "squeue": 'for job in $(seq "$(wc -l < calls)"); do echo "$job|FAILED"; done',
    "scontrol": "echo MinJobAge = 3600",
    "sinfo": "echo all",
    "sacct": "",
    "scancel": "",
}


def test_jobs_ask_for_what_their_run_needs_and_a_failed_one_shows_its_log(tmp_path, monkeypatch):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    data = tmp_path / f"resources/data/{RUN.spec.data.label}"
    data.mkdir(parents=True)
    (data / "meta.json").write_text("{}")  # no job reads it
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    settings = {"seconds-between-status-checks", "slurm-init-seconds-before-status-checks"}
    settings |= {"retries", "latency-wait"}
    own = tuple(word for name in settings for word in (f"--{name}", "1"))
    target = f"results/smoke/runs/{RUN.id}/train.json"
    process = running.start(tmp_path, target, cores=2, profile="slurm", options=own)
    try:
        assert process.wait(timeout=300) != 0
    finally:
        running.stop(tmp_path)
    said = (tmp_path / "workflow.log").read_text()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all("rule_train" in call and " --requeue " in call for call in calls), said
    # What a run of 30,000 weights needs, and more after each failure: a node may be shared.
    asked = [int(re.search(r"--mem (\d+)", call)[1]) for call in calls]
    assert 1500 <= asked[0] <= 1600 and asked == [n * asked[0] for n in (1, 2)], said
    assert LOG in said and "Error: no GPU here" in said and "Traceback" not in said
