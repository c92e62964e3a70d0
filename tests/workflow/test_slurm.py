"""The slurm profile on a Slurm that is none: what it submits, and what a failed job says."""

import os
import re

import pytest

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from tests.workflow import running

pytestmark = pytest.mark.slow
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
    data = tmp_path / f"resources/data/{RUN.data_label}"
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
    assert f"Error: no GPU here ({LOG})" in said and "Traceback" not in said
