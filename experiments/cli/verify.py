"""Train committed runs again, and say whether they come out as recorded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments import tasks
from experiments.cli.options import app
from experiments.evaluation import model as scoring
from experiments.specs.code import training_code_hash
from experiments.specs.expand import runs_of
from experiments.specs.lookup import find_run, find_runs
from experiments.specs.read import check_study
from experiments.specs.run import Run
from experiments.specs.schema import SCALES, SpecError, check_choice
from experiments.store import paths, reference, verification
from experiments.store.io import read_cache, read_json, write_whole

if TYPE_CHECKING:
    from experiments.store.verification import Verified


def named_runs(run: str | None, study: str | None, scale: str | None) -> list[Run]:
    """The committed runs that a command names; raises `SpecError` where there are none."""
    if run is not None:
        if study or scale:
            raise SpecError("name --run alone, or --study and --scale: an id has its scale")
        chosen = find_runs(run)
    elif study is None and scale is None:
        raise SpecError("name what to verify: --run ID, --study NAME or --scale NAME")
    else:
        check_choice("scale", scale or "quick", SCALES)
        check_study(study or "all", "all")
        chosen = runs_of(scale or "quick", study or "all")
    return reference.recorded(chosen, run or " ".join(filter(None, (study, scale))))


@app.command()
def verify(
    run: Annotated[str | None, typer.Option("--run", help="run ids, with commas")] = None,
    study: Annotated[str | None, typer.Option(help="the committed runs of a study")] = None,
    scale: Annotated[str | None, typer.Option(help="of a scale; default: quick")] = None,
    trained: Annotated[
        bool, typer.Option("--trained", help="train nothing: judge what was trained again before")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--json", help="also write a line of JSON for each run here")
    ] = None,
) -> None:
    """Train runs again and compare them with their records; exits with 1 where one differs.

    They are trained into results/<scale>/verify, so no result is replaced. `snakemake verify`
    does the same on all cores.
    """
    found: list[Verified] = []
    named = named_runs(run, study, scale)
    if out is not None:
        write_whole(out, b"")  # what cannot be written is told before a run is trained
    for chosen in named:
        if not trained:
            train_again(chosen, repeat=True)
        record = paths.verified(chosen.scale, chosen.id) / "record.json"
        if not record.is_file():
            raise SpecError(f"{record} is missing: verify it without --trained")
        found.append(_judge(chosen, record))
        print(found[-1].line(), flush=True)
    print(verification.summary(found))
    if out is not None:
        lines = "".join(json.dumps(item._asdict()) + "\n" for item in found)
        write_whole(out, lines.encode())
    if not all(item.is_good for item in found):
        raise typer.Exit(1)


def _judge(run: Run, path: Path) -> Verified:
    """Compare a new record with the committed one."""
    recorded = reference.find(run.id)
    return verification.judge(recorded, read_json(path), seeds=reference.seeds_of(run))


@app.command(hidden=True)
def again(run: Annotated[str, typer.Option()]) -> None:
    """Train and score one run into results/<scale>/verify, for the rule of that name."""
    train_again(find_run(run))


def train_again(run: Run, *, repeat: bool = False) -> None:
    """Train and score a run as it was recorded, and before it the run that it starts from.

    Args:
        repeat: Whether to train it although an earlier `verify` did.
    """
    folder, code = paths.verified(run.scale, run.id), training_code_hash(run.spec)
    before = read_cache(folder / "record.json")
    if not repeat and (before.get("spec_hash"), before.get("code_hash")) == (run.spec.hash, code):
        return
    if run.first is not None:
        train_again(find_run(run.first))
    scoring.quiet_and_offline()
    from experiments.store.record import gather
    from experiments.training import loop as training

    shutil.rmtree(folder, ignore_errors=True)
    recorded = reference.find_all([run.id]).get(run.id, {})
    compute = recorded.get("compute", {})
    compiles = shutil.which(os.environ.get("CXX", "g++")) is not None  # else within rounding
    how = {"execution": recorded["execution"], "precision": compute.get("precision", "fp32"),
           "compile": compute.get("compile", False) and compiles} if recorded else {}  # fmt: skip
    data = tasks.ensure(run.spec.task, run.spec.data, paths.data(run.spec.data.label))
    training.train(
        run.spec,
        code_hash=code,
        command=f"python -m experiments verify --run {run.id}",
        data_dir=data,
        out=folder,
        state_dir=paths.state(run.id, run.spec.hash, root=paths.STATE / "verify"),
        num_threads=1,
        **how,
        first=paths.verified(run.scale, run.first) / "model" if run.first else None,
    )
    assert run.spec.suite is not None  # each run of a study has one
    model, out, task = folder / "model", folder / "eval.json", run.spec.task
    scoring.evaluate_model(model, run.spec.suite, data_dir=data, out=out, task=task)
    gather(folder)


def judged(
    scale: str, study: str = "all", *, folder: Callable[[str, str], Path] = paths.run
) -> list[Verified]:
    """Comparisons of the committed runs that have a new record: here, or in `verified`."""
    known = reference.entries()
    found = ((run, folder(scale, run.id) / "record.json") for run in runs_of(scale, study))
    return [_judge(run, path) for run, path in found if run.id in known and path.is_file()]
