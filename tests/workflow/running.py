"""A workflow in a folder of its own, and its processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from experiments.specs.run import Run

ROOT = Path(__file__).resolve().parents[2]
#: Environment variable that marks every process of one workflow, orphans included.
MARK = "SPARSE_TEST_WORKFLOW"


def start(
    folder: Path,
    *targets: str,
    save_every_s: float = 0.0,
    log: str = "workflow.log",
    cores: int = 1,
    preload: bool = False,
    profile: str = "default",
    options: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    """Snakemake in a folder and a process group of its own, saving its state at each step.

    With ``preload``, jobs are forks of one process, and those that wait for them have their names.
    """
    words = [*targets, "--config", f"preload={preload}", *options]
    words += ["--snakefile", str(ROOT / "Snakefile"), "--cores", str(cores)]
    words += ["--workflow-profile", str(ROOT / "profiles" / profile), "--directory", str(folder)]
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: str(folder)}
    with (folder / log).open("w") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *words], cwd=folder, start_new_session=True,
            env={**os.environ, **own, "SPARSE_SAVE_EVERY_S": str(save_every_s)},
            stdout=stream, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


def by_hand(folder: Path, runs: list[Run]) -> None:
    """Train and score runs of one dataset without Snakemake, in one process."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = [["prepare", "--data", runs[0].spec.data.label]]
    options = ["--threads", "1", "--device", "cpu", "--execution", "auto", "--score"]
    commands += [["train", "--run", run.id, *options] for run in runs]
    code = (
        f"from experiments.cli.app import app\nfor c in {commands}: app(c, standalone_mode=False)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)


def processes(folder: Path) -> list[psutil.Process]:
    """The living processes of the workflow in a folder, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return sorted(found, key=lambda process: process.pid)


def role(process: psutil.Process) -> str:
    """``snakemake``, the command of ``python -m experiments``, or the program's name."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return "?"
    if "experiments" in words[:-1]:
        return words[words.index("experiments") + 1]
    return "snakemake" if "snakemake" in words else Path(words[0]).name if words else "?"


def stop(folder: Path) -> None:
    """End what is left of a workflow."""
    for process in processes(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes(folder), timeout=30)
