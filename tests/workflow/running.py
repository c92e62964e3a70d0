"""Kill -9 of random processes of a running workflow at random times, until it ends.

``python -m tests.workflow.running --kills 100`` prints one line per trial. A trial is one workflow
in a folder of its own: it is started, loses some processes, and is started again until it ends.
What it has computed must then be what an uninterrupted workflow computes, bit for bit, apart from
times. States are saved at every step, so many kills fall into a save.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from experiments.specs.run import Run

ROOT = Path(__file__).resolve().parents[2]
#: Two runs, the second from the weights of the first, with evaluation, tables, figures, a page.
WORKFLOW = ("reproduce", "--config", "scale=smoke", "study=spdf")
#: Environment variable that marks every process of one workflow, orphans included.
MARK = "SPARSE_TEST_WORKFLOW"
#: Keys, columns and metrics that hold times, or digests of them, which no two runs share.
TIMES = {"wall_s", "wall time (s)", "elapsed_s", "trained_s", "trained_cpu_s"}
TIMES |= {"tokens_per_s", "images_per_s"}
#: Files without results: locks, and Snakemake's own.
NOTES = (".lock", ".snakemake_timestamp")
#: Seconds that an undisturbed start may take on a busy machine, and that pass between two kills.
PATIENCE_S, MEAN_DELAY_S = 3600, 10.0
#: After so many kills a workflow is left alone.
MAX_KILLS = 12


@dataclass
class Trial:
    """Starts, kills and the problem of one workflow."""

    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    problem: str = ""


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
    words = list(targets or WORKFLOW)
    words += [*([] if "--config" in words else ["--config"]), f"preload={preload}", *options]
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


def run_trial(folder: Path, *, seed: int, max_kills: int, preload: bool = False) -> Trial:
    """Start, kill and start again until the workflow ends; one start without kills must end well.

    Args:
        folder: where the workflow works.
        seed: of the victims and the times.
        max_kills: after so many the workflow is left alone.
        preload: see `start`.
    """
    rng, trial = random.Random(seed), Trial()
    while not trial.problem:
        process, undisturbed = start(folder, preload=preload), True
        trial.starts += 1
        while process.poll() is None:
            if sum(trial.kills.values()) >= max_kills:
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    trial.problem = f"still busy after {PATIENCE_S} s"
                    stop(folder)
                break
            killed = kill_one(folder, process, rng)
            if killed is not None:
                trial.kills[killed] += 1
                undisturbed = False
        if process.returncode == 0:
            break
        if undisturbed and not trial.problem:
            trial.problem = f"exit {process.returncode}: " + (folder / "workflow.log").read_text()
    stop(folder)
    return trial


def kill_one(folder: Path, root: subprocess.Popen[str], rng: random.Random) -> str | None:
    """Wait a random time, then kill a process, every other time that of a job.

    Returns:
        What it was; None if it was too late.
    """
    wants_job = rng.random() < 0.5
    due = time.monotonic() + rng.expovariate(1 / MEAN_DELAY_S)
    while root.poll() is None:
        if time.monotonic() > due:
            late = time.monotonic() > due + MEAN_DELAY_S  # there is no job
            candidates = processes(folder)
            if wants_job and not late:
                candidates = [process for process in candidates if role(process) != "snakemake"]
            if candidates:
                victim = rng.choice(candidates)
                name = "parent" if victim.pid == root.pid else role(victim)
                with contextlib.suppress(psutil.Error):
                    victim.kill()
                    return name
        time.sleep(0.02)
    return None


def run_of(process: psutil.Process) -> str | None:
    """The run that a process of `train` has."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    return words[words.index("--run") + 1] if "--run" in words[:-1] else None


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


def trials(kills: int, work: Path) -> Iterator[Trial]:
    """Trials with fresh folders until so many processes were killed; a failed folder is kept."""
    whole = work / "whole"
    whole.mkdir()
    undisturbed = run_trial(whole, seed=0, max_kills=0)
    if undisturbed.problem:
        raise RuntimeError(undisturbed.problem)
    reference, done, number = results(whole), 0, 0
    while done < kills:
        folder = work / f"trial-{number}"
        folder.mkdir()
        # Every other trial prepares its data under fire too, and every other pair forks its jobs.
        if number % 2:
            shutil.copytree(whole / "resources", folder / "resources")
        most = min(MAX_KILLS, kills - done)
        trial = run_trial(folder, seed=number, max_kills=most, preload=number % 4 >= 2)
        if not trial.problem and (differing := differences(folder, reference)):
            trial.problem = f"other results in {folder}: {', '.join(differing)}"
        done, number = done + sum(trial.kills.values()), number + 1
        yield trial
        if not trial.problem:
            shutil.rmtree(folder)


def main() -> None:
    """Print one line per trial and the sum of the kills; exit 1 after a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    total, failed = Counter[str](), 0
    for trial in trials(parser.parse_args().kills, Path(tempfile.mkdtemp(prefix="killer-"))):
        total += trial.kills
        failed += bool(trial.problem)
        killed = ", ".join(f"{name} {count}" for name, count in sorted(trial.kills.items()))
        print(f"{trial.starts} starts ({killed}): {trial.problem or 'identical'}", flush=True)
    print(f"{sum(total.values())} kills, {failed} trials with another outcome: {dict(total)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
