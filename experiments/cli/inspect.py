"""Commands that change nothing: whether studies are right, what they cost, and what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments import data as datasets
from experiments import models
from experiments.cli.options import Scale, app, check_device
from experiments.errors import UserError, reason, refusals
from experiments.specs.expand import BUDGET_CORE_S, all_runs, computation_costs, runs_of
from experiments.specs.lookup import find_run
from experiments.specs.read import check_study, load_study, study_names
from experiments.specs.run import Run, RunSpec
from experiments.specs.schema import SCALES, SpecError
from experiments.store import paths, reference
from experiments.store.io import read_cache, read_json

if TYPE_CHECKING:
    from experiments.store.record import Record


@app.command()
def check(
    scale: Annotated[str | None, typer.Option(help="one scale; default: all")] = None,
    study: Annotated[str, typer.Option(help="one study, or all")] = "all",
    device: Annotated[str, typer.Option(help="also check that this machine has it")] = "cpu",
) -> None:
    """Validate studies, suites and sparsity configurations, and that a device is here."""
    check_device(device)
    for name in [scale] if scale else SCALES:
        check_runs(runs_of(name, study))


def check_runs(runs: Iterable[Run]) -> None:
    """Let the library check the suites, transformations and sparsity configurations of runs.

    Raises:
        SpecError: Where a model cannot be transformed, and where masks never change, never reach
            the end of their schedule, or end at another sparsity than the method says.
    """
    from experiments.evaluation.suite import KINDS, load_suite
    from sparse_lib.configure import configure
    from sparse_lib.core.mistakes import unreached

    seen: set[str] = set()
    for run in runs:
        file, spec, config = f"{run.studies[0]}.yaml", run.spec, run.spec.mask_config()
        load_suite(str(spec.suite), KINDS[str(spec.data.KIND)])
        parts = [spec.model.model_dump(), spec.data.label, spec.transform]
        if (built := repr(parts)) not in seen:
            seen.add(built)
            _check_transform(spec, f"{file}: methods.{spec.method}.transform")
        wanted, num_steps = spec.final_sparsity, spec.recipe.steps
        text = json.dumps([config, wanted, num_steps], sort_keys=True)
        if config is None or text in seen:
            continue
        seen.add(text)
        method = f"methods.{spec.method}"
        place = f"{file}: {method}.sparsity"
        with refusals(place):
            algorithm, reached = configure(config), _last_sparsity(config, num_steps)
        key = ".update" if isinstance(config, dict) and "update" in config else ""
        for note in unreached(algorithm, num_steps) if algorithm is not None else ():
            raise SpecError(f"{place}{key}: at scale {run.scale}, {note}")
        if reached is not None and abs(reached - (wanted or 0.0)) > 1e-6:
            raise SpecError(
                f"{file}: {method}.final_sparsity is {wanted}, but {method}.sparsity ends at "
                f"{reached:g} at scale {run.scale}; they must be equal"
            )


def _check_transform(spec: RunSpec, place: str) -> None:
    """Transform the model of a run without storage, unless only its prepared data tell the sizes.

    A model of more than 200 layers is left to its training, which begins with the same check.
    """
    known = read_cache(paths.data(spec.data.label) / "meta.json")
    known = known or getattr(datasets.get(spec.data.name, spec.data.KIND), "declared", {})
    config, module = spec.model.config, models.get(spec.model.name)
    if spec.transform is None or getattr(config, "num_layers", 0) > 200:
        return
    data: Any = spec.data
    if spec.task == "lm":
        size = {"sequence_length": data.context}
        vocabulary = known.get("vocab_size", data.vocab_size)
        sizes = {"vocab_size": vocabulary, "context": data.context, "eos_id": 0}
    elif spec.task == "vision" and known:
        size = {"image_size": known["image_size"]}
        sizes = {key: known[key] for key in ("classes", "num_channels", "image_size")}
    else:
        return
    import torch

    from sparse_lib import ift

    try:
        with refusals(place), torch.device("meta"):
            ift.transform(module.build(config, **sizes), **spec.transform.to_json(), **size)
    except UserError:
        raise
    except (RuntimeError, TypeError, OverflowError) as error:  # torch has no tensor of such a size
        raise SpecError(f"{place}: {spec.model.label} cannot be built: {reason(error)}") from None


def _last_sparsity(config: dict[str, Any], num_steps: int) -> float | None:
    """Target at the last mask update; None where it is set for each parameter by name."""
    from torch import nn

    from sparse_lib.preview import plan as plan_masks

    level = config.get("sparsity")
    if isinstance(level, dict) and "type" not in level:
        return None
    keys = ("algorithm", "sparsity", "update", "compat")
    shown = {key: config[key] for key in keys if key in config}
    (weight, *_) = plan_masks(nn.Linear(64, 64), shown, num_steps=num_steps).parameters
    return weight.final_sparsity


@app.command("plan")
def print_plan(
    scale: Scale = "quick",
    study: str = "all",
    missing: Annotated[
        bool, typer.Option("--missing", help="only what is neither finished here nor committed")
    ] = False,
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
    for run in chosen:
        kept = reference.entries().get(run.id)
        other = kept is not None and kept.spec_hash != run.spec.hash
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
    finished = own.is_file() and read_json(own).get("spec_hash") == run.spec.hash
    return finished or reference.reusable(run)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="a run id")],
    committed: Annotated[
        bool, typer.Option("--committed", help="the committed record, though one was made here")
    ] = False,
) -> None:
    """Print the record of a run as JSON; its command and where it was made go to stderr."""
    paths.name("run", run)
    own = next(iter(sorted(paths.RESULTS.glob(f"*/runs/{run}/record.json"))), None)
    record = reference.find(run) if committed or own is None else read_json(own)
    where = "committed" if committed or own is None else str(own)
    print(f"# {where}; again: {record['command']}", file=sys.stderr)
    print(json.dumps(record, indent=1, sort_keys=True))


@app.command()
def compare(runs: Annotated[list[str], typer.Argument(help="run ids")]) -> None:
    """Print runs side by side: what was made here and what is committed."""
    found = [pair for name in runs for pair in _records_of(find_run(name))]
    from rich import print as show_table

    from experiments.cli import terminal

    show_table(terminal.compare(found))


def _records_of(run: Run) -> list[tuple[str, Record]]:
    """The record made here and the committed one; raises `SpecError` where there is neither."""
    from experiments.store.record import checked, read_record

    here = paths.run(run.scale, run.id) / "record.json"
    found = [("made here", read_record(here))] if here.is_file() else []
    for committed in reference.find_all([run.id]).values():
        found.append(("committed", checked(committed, f"committed {run.id}")))
    if not found:
        raise SpecError(f"run {run.id} has no record, neither here nor among the committed")
    return found


@app.command()
def where(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Print in ten lines what ran at the configured scale, what was found, and where the page is.

    Takes the arguments of `snakemake reproduce`: ``where -- --config scale=smoke study=flops``.
    Where that report is not written yet, names the committed one.
    """
    from experiments.request import DEFAULTS, checked

    chosen = checked(DEFAULTS | dict(_given(arguments or [])))
    folder = paths.reports(chosen["scale"])
    if not (folder / "index.html").is_file():
        print(
            f"{folder}/index.html does not exist before `snakemake reproduce --config "
            f"scale={chosen['scale']}` has written it; the committed report is reports/README.md, "
            "and `python -m experiments show RUN` prints a record with its command."
        )
        return
    from experiments.findings import evidence, ledger
    from experiments.report import render

    found = evidence.judged(chosen["scale"])
    done = found.scores["run"].unique()
    here = sum((paths.run(chosen["scale"], run) / "record.json").is_file() for run in done)
    print(
        f"{len(done)} of {len(found.runs)} runs of scale {chosen['scale']} have a record: "
        f"{here} made here, {len(done) - here} committed. Found:"
    )
    for line in render.short(ledger.nine(found)):
        print(f"  {line}")
    print(f"The page is {folder}/index.html; its cards have the command that repeats each.")
    from experiments.cli.verify import judged
    from experiments.store import verification

    if again := judged(chosen["scale"], chosen["study"]):
        for item in again:
            if not item.is_good:
                print(item.line())
        print(f"{verification.summary(again)}.")


def _given(arguments: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Key and value of each ``key=value`` of Snakemake's arguments, read as Snakemake does."""
    is_config = True
    for word in arguments:
        if word.startswith("-"):
            is_config = word in ("--config", "-C")
        elif is_config and "=" in word:
            key, value = word.split("=", 1)
            plain = {"True": True, "False": False}.get(value, value)
            yield key, int(value) if value.isdecimal() and len(value) < 10 else plain
