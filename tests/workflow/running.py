"""A workflow in a folder of its own: its processes, and what it computed apart from times."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from experiments.specs.run import Run

ROOT = Path(__file__).resolve().parents[2]
#: Environment variable that marks every process of one workflow, orphans included.
MARK = "SPARSE_TEST_WORKFLOW"
#: Keys, columns and metrics that hold times, or digests of them, which no two runs share.
TIMES = {"wall_s", "wall time (s)", "elapsed_s", "trained_s", "trained_cpu_s"}
TIMES |= {"tokens_per_s", "images_per_s"}
#: Files without results: locks, and Snakemake's own.
NOTES = (".lock", ".snakemake_timestamp")


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
    commands = [["prepare", "--data", runs[0].data_label]]
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


def results(folder: Path) -> dict[str, str]:
    """Each file that a workflow computed to a digest of its content apart from times."""
    found = {}
    for path in sorted([*folder.glob("results/**/*"), *folder.glob("reports/**/*.csv")]):
        if path.is_file() and path.name not in NOTES and path.suffix != ".parquet":
            content = _timeless(path)
            found[path.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def _timeless(path: Path) -> bytes:
    if path.suffix == ".json":
        return json.dumps(_without_times(json.loads(path.read_text(encoding="utf-8")))).encode()
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        return json.dumps([_without_times(json.loads(line)) for line in lines]).encode()
    if path.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        kept = [_without_times(row) for row in rows if row.get("metric") not in TIMES]
        return json.dumps(kept).encode()
    return path.read_bytes()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def differences(folder: Path, reference: dict[str, str]) -> list[str]:
    """Files that are missing, besides, or of another content than in an uninterrupted workflow."""
    own = results(folder)
    return sorted(name for name in own.keys() | reference if own.get(name) != reference.get(name))
