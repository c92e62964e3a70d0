"""`plan`: what runs cost before any is trained, in core-seconds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from experiments.cli.inspect import check_runs
from experiments.cli.options import Scale, app
from experiments.specs.expand import BUDGET_CORE_S, all_runs, computation_costs
from experiments.specs.read import check_study, load_study, study_names
from experiments.specs.run import Run
from experiments.store import paths
from experiments.store.io import read_json
from experiments.store.reference import entries, reusable


@app.command("plan")
def print_plan(
    scale: Scale = "quick",
    study: str = "all",
    missing: Annotated[
        bool, typer.Option("--missing", help="only what is neither finished here nor committed")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Print the runs of a scale and what they cost in core-seconds, as their studies expect it.

    With --study, the library checks their configurations first, as `check` does of all studies.
    """
    check_study(study, "all")
    every = all_runs(scale, broken=None if study == "all" else {})
    chosen = [
        run
        for run in every.values()
        if study in ("all", *run.studies) and not (missing and _has_record(run))
    ]
    if study != "all":
        check_runs(chosen)
    chosen_studies = [name for name in study_names() if study in ("all", name)]
    names = {c.name for name in chosen_studies for c in load_study(name).computations}
    costs = {
        name: cost
        for name, cost in computation_costs(scale).items()
        if name in names and not (missing and _is_made(name, scale))
    }
    if as_json:
        runs = [
            {"run": run.id, "studies": run.studies, "core_seconds": run.core_seconds}
            for run in chosen
        ]
        print(json.dumps({"runs": runs, "computations": costs}, indent=1))
        return
    for run in chosen:
        kept = entries().get(run.id)
        other = kept is not None and kept.spec_hash != run.spec_hash
        note = "; declared, and the committed run has other settings" if other else ""
        print(f"{run.core_seconds:8.0f}  {run.id}  ({', '.join(run.studies)}{note})")
    for name, cost in costs.items():
        print(f"{cost:8.0f}  computation {name}")
    total = sum(run.core_seconds for run in chosen) + sum(costs.values())
    print(f"{total:8.0f}  declared core-seconds in {len(chosen)} runs")
    budget = BUDGET_CORE_S.get(scale)
    if budget:
        planned = sum(run.core_seconds for run in every.values())
        planned += sum(computation_costs(scale).values())
        over = f", over it by {planned - budget:,.0f}" if planned > budget else ""
        print(f"{planned:8.0f}  of all studies, whose budget is {budget:,}{over}")


def _is_made(name: str, scale: str) -> bool:
    """Whether a computation's tables are here, or committed."""
    folders = paths.computation(scale, name), paths.REFERENCE / name
    return any(True for folder in folders for _ in folder.glob("*.csv"))


def _has_record(run: Run) -> bool:
    """Whether a run is finished here, or a committed record that fits stands for it."""
    own = paths.run(run.scale, run.id) / "record.json"
    finished = own.is_file() and read_json(own).get("spec_hash") == run.spec_hash
    return finished or reusable(run, data_folder=paths.DATA)
