"""Runs, data and studies by name, for commands and rules."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import Any

from experiments import tasks
from experiments.specs import read
from experiments.specs.expand import all_runs, study_runs
from experiments.specs.run import Run
from experiments.specs.schema import SCALES, PlannedStudy, Scale, SpecError, check_choice

#: Lists the runs of a scale.
RUNS_OF = "`python -m experiments plan --scale {}`"


def known_runs(*scales: Scale) -> dict[str, Run]:
    """Runs of all sound studies by id, at these scales or all; read again when a file changes."""
    return _known_runs(read.stamp(), scales or SCALES)[0]


@functools.lru_cache(maxsize=len(SCALES))
def _known_runs(
    _stamp: Any, scales: tuple[Scale, ...]
) -> tuple[dict[str, Run], dict[str, SpecError]]:
    """The runs, and the errors of studies by the studies' names."""
    runs, broken = dict[str, Run](), dict[str, SpecError]()
    for scale in scales:
        runs |= all_runs(scale, broken=broken)
    return runs, broken


def find_run(run_id: str) -> Run:
    """The run with this id; raises `SpecError`."""
    prefix = run_id.split("__")[0]
    scales: list[Scale] = [scale for scale in SCALES if scale == prefix]
    known = known_runs(*scales)
    _raise_broken(run_id, known, *scales)
    check_choice("run", run_id, known, RUNS_OF.format(*scales, "SCALE"))
    return known[run_id]


def _raise_broken(name: str, known: Collection[str], *scales: Scale) -> None:
    """Raise what is wrong with a study, if none of the sound ones has the name."""
    _, broken = _known_runs(read.stamp(), scales or SCALES)
    for error in broken.values() if name not in known else ():
        raise error


def _but_for_seed(run: Run) -> tuple[Any, ...]:
    """A key that runs share if they differ in their seed only."""
    return (run.spec.data.label, *({**run.spec.labels, "seed": None}.values()))


def find_runs(text: str) -> list[Run]:
    """The runs of a comma-separated list of ids, as `rerun_command` writes it.

    A number alone is a further seed of the run before it: ``ID,1,2,ID2``.

    Raises:
        SpecError: for an id that no study defines, or runs of several scales.
    """
    runs: list[Run] = []
    for part in text.split(","):
        if not (part.isdecimal() and len(part) < 10 and runs):
            runs.append(find_run(part))
            continue
        shared = _but_for_seed(runs[-1])
        twins = {r.spec.seed: r for r in known_runs().values() if _but_for_seed(r) == shared}
        if int(part) not in twins:
            raise SpecError(
                f"run is {text!r}, but {runs[-1].id} has no twin of seed {part}, only of "
                f"{', '.join(map(str, sorted(twins)))}"
            )
        runs.append(twins[int(part)])
    scales = sorted({run.scale for run in runs})
    if len(scales) > 1:
        raise SpecError(f"run is {text!r}, but all runs must be of one scale, not {scales}")
    return runs


def rerun_command(ids: Iterable[str]) -> str:
    """The one command that repeats these runs and what depends on them."""
    ids = list(ids)
    scales = [scale for scale in SCALES if any(i.startswith(f"{scale}__") for i in ids)]
    known = known_runs(*scales) if len(ids) > 1 else {}
    groups: dict[Any, list[str]] = {}
    for run_id in ids:
        key = _but_for_seed(known[run_id]) if run_id in known else run_id
        groups.setdefault(key, []).append(run_id)
    words: list[str] = []
    for group in groups.values():
        first, *others = sorted(group, key=lambda i: known[i].spec.seed if i in known else 0)
        words += [first, *(str(known[i].spec.seed) for i in others)]
    return f"snakemake rerun --config run={','.join(words)}"


def find_data(label: str) -> tuple[str, tasks.Data]:
    """Task and data of a folder of ``resources/data``, as the studies ask for it."""
    known = {run.spec.data.label: run.spec for run in known_runs().values()}
    _raise_broken(label, known)
    check_choice("data", label, known)
    return known[label].task, known[label].data


def planned_study(name: str, scale: str) -> PlannedStudy:
    """A study with its runs at a scale; raises `SpecError`."""
    study = read.load_study(name)
    known = check_choice("scale", scale, SCALES)
    runs = tuple(study_runs(study, known))
    return PlannedStudy.model_construct(**dict(study), scale=known, runs=runs)
