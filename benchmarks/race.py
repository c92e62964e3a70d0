"""Run entries of the race side by side, one per core, and print who is first.

    python benchmarks/race.py dense-window rigl-window [--scale small] [--seeds 5] [--cores 0,1]

Each entry of `experiments/race` that is named trains its seeds at each of its budgets, as the study
`race` does, into results/<scale>/runs. Runs of the same seed and budget start together, one on each
core, and the next ones when all of them have ended; with each seed the entries change cores. Of
more entries than cores, as many start together as there are cores. Nothing else may run meanwhile;
a start in which a run had too little of its core is undone. Scores and records are made afterwards,
and a finished run is left as it is. docs/race.md has the rules.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis import race
from experiments.analysis.costs import ALONE
from experiments.computations import _measured
from experiments.errors import UserError
from experiments.memory import keep_memory
from experiments.specs.expand import study_runs
from experiments.specs.lookup import planned_study
from experiments.specs.read import load_study
from experiments.specs.run import Run
from experiments.store import paths
from experiments.store.collect import records_table
from experiments.store.io import read_json, read_jsonl
from experiments.training.loop import Trainer

STUDY = "race"
#: Steps before the timed ones, and timed ones.
WARM_UP, STEPS = 5, 40


def rounds(entries: Sequence[str], scale: str, num_seeds: int) -> list[list[Run]]:
    """Runs that start together: one seed and budget of each entry, short budgets first."""
    runs = [run for run in study_runs(load_study(STUDY), scale) if run.spec.method in entries]
    for entry in entries:
        if not any(run.spec.method == entry for run in runs):
            raise UserError(f"entry is {entry!r}, of which the race has no run at scale {scale}")

    def place(run: Run) -> tuple[int, int, str]:
        return run.spec.seed, entries.index(run.spec.method or ""), run.spec.recipe.name

    found: list[list[Run]] = []
    chosen = sorted((run for run in runs if run.spec.seed < num_seeds), key=place)
    for _, of_seed in groupby(chosen, lambda run: run.spec.seed):
        budgets: dict[str, list[Run]] = {}
        for run in of_seed:
            budgets.setdefault(run.spec.recipe.name, []).append(run)
        found += budgets.values()
    return found


def starts(runs: Sequence[Run], cores: Sequence[int], swap: int) -> Iterator[list[tuple[Run, int]]]:
    """Pairs of a run and its core that start at once; ``swap`` moves the entries along."""
    for first in range(0, len(runs), len(cores)):
        together = runs[first : first + len(cores)]
        yield [(run, cores[(at + swap) % len(cores)]) for at, run in enumerate(together)]


def train(start: Sequence[tuple[Run, int]]) -> None:
    """Train these runs at once, each on its core, and wait for all.

    Raises:
        SystemExit: If one of them fails, or had less than `ALONE` of its core: then all are undone.
    """
    started = []
    for run, core in start:
        command = [sys.executable, "-m", "experiments", "train", "--run", run.id]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, {core})
        started.append(process)
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(1)
    shares = [share(run) for run, _ in start]
    if min(shares) < ALONE:
        for run, _ in start:
            shutil.rmtree(paths.run(run.scale, run.id))
        had = ", ".join(f"{share:.0%}" for share in shares)
        raise SystemExit(
            f"the start of {start[0][0].id} is undone: its runs had {had} of their cores"
        )


def share(run: Run) -> float:
    """Share of its core that a finished run had in its training steps."""
    rows = read_jsonl(paths.run(run.scale, run.id) / "metrics.jsonl")
    last = [row for row in rows if row["kind"] == "validation"][-1]
    return last["trained_cpu_s"] / last["trained_s"]


def finish(run: Run) -> dict[str, object]:
    """Score a trained run and return its record."""
    folder = paths.run(run.scale, run.id)
    for step in ("evaluate", "record"):
        made = folder / {"evaluate": "eval.json", "record": "record.json"}[step]
        if not made.is_file():
            command = [sys.executable, "-m", "experiments", step, "--run", run.id]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_json(folder / "record.json")


def step_seconds(run: Run, *, hollow: bool) -> float:
    """Median processor seconds of a step; ``hollow`` without the blocks' linear layers."""
    spec = run.spec.model_copy(update={"sparsity": None}) if hollow else run.spec
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(spec, data_dir=paths.data(run.data_label), state_dir=Path(scratch))
    if hollow:
        _measured.hollow(trainer.model)
    trainer.model.train()
    taken = []
    for number in range(WARM_UP + STEPS):
        begin = time.process_time()
        trainer.step()
        if number >= WARM_UP:
            taken.append(time.process_time() - begin)
    return statistics.median(taken)


def print_steps(runs: Sequence[Run], ends: pd.DataFrame, ratios: Sequence[dict[str, Any]]) -> None:
    """Print what a step of each entry takes now, and the kernels with which a slower one would tie.

    A sparse entry that needed ``ratio`` of its time to tie has that part of its records' step,
    less what is outside of the linear layers, for these layers.
    """
    keep_memory()
    steps = {run.id: run.spec.recipe.steps for run in runs}
    recorded = (ends["seconds"] / ends["run"].map(steps)).groupby(ends["method"]).mean()
    wanted = {row["sparse"]: row["value"] * recorded[row["sparse"]] for row in ratios}
    for run in {run.spec.method: run for run in runs}.values():
        whole, outside = (step_seconds(run, hollow=hollow) for hollow in (False, True))
        line = f"{run.spec.method}: step {1e3 * whole:.1f} ms, {1e3 * outside:.1f} ms of it outside"
        if (tie := wanted.get(run.spec.method or "")) is not None:
            left = tie - outside
            factor = (whole - outside) / left if left > 0 else math.inf
            line += f"; ties at {1e3 * tie:.1f} ms, layers {factor:.2f} times as fast as now"
        print(line)


def main() -> None:
    """Run the entries side by side and print the table of their ends and the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("entries", nargs="+")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--seeds", type=int, default=5)
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--cores", default=",".join(map(str, cores)), help="default: all")
    parser.add_argument("--later", action="store_true", help="score and print another time")
    arguments = parser.parse_args()
    cores = [int(core) for core in arguments.cores.split(",")]
    found = rounds(arguments.entries, arguments.scale, arguments.seeds)
    for runs in found:
        left = [run for run in runs if not (paths.run(run.scale, run.id) / "train.json").is_file()]
        for start in starts(left, cores, runs[0].spec.seed):
            train(start)
    if arguments.later:
        return
    if found:
        records = [finish(run) for runs in found for run in runs]
        study = planned_study(load_study(STUDY), arguments.scale)
        ends = race.ends(records_table(records, study))
        print(
            ends[["method", "recipe", "seed", "machine", "seconds", "loss"]].to_string(index=False)
        )
        ratios = race.verdicts(ends).to_dict("records")
        for row in ratios:
            print(json.dumps({key: value for key, value in row.items() if key != "runs"}))
        print_steps([run for runs in found for run in runs], ends, ratios)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"Error: {error}")
