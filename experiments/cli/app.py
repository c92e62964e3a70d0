"""Commands that the workflow's rules call; a person can call them too.

``python -m experiments --help`` lists them.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments import tasks
from experiments.specs import plan
from experiments.specs.schema import SCALES, check_choice
from experiments.store import paths

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

RunId = Annotated[str, typer.Option("--run", help="a run id, as `plan` prints it")]
Scale = Annotated[str, typer.Option(help="smoke, quick, small or paper")]
StudyName = Annotated[str, typer.Option("--study", help="a file of experiments/studies")]
Mirror = Annotated[Path | None, typer.Option(help="folder with <root>/<hub id> datasets")]


def data_folder(label: str) -> Path:
    """Where prepared data lies, relative to the repository."""
    return Path("resources/data") / label


def run_folder(run: plan.Run) -> Path:
    """Where a run's files lie, relative to the repository."""
    return Path("results") / run.scale / "runs" / run.id


def mirror_root(mirror: Path | None) -> Path | None:
    """The option, or the environment variable SPARSE_MIRROR."""
    value = mirror or os.environ.get("SPARSE_MIRROR")
    return Path(value) if value else None


@app.command("plan")
def print_plan(scale: Scale = "quick", study: str = "all") -> None:
    """Print the runs of a scale and their expected cost in core-seconds."""
    check_choice("study", study, ["all", *plan.study_names()])
    runs = plan.all_runs(scale).values()
    chosen = [run for run in runs if study in ("all", *run.studies)]
    for run in chosen:
        print(f"{run.core_seconds:8.0f}  {run.id}  ({', '.join(run.studies)})")
    chosen_studies = [name for name in plan.study_names() if study in ("all", name)]
    names = {c.name for name in chosen_studies for c in plan.load_study(name).computations}
    costs = {name: cost for name, cost in plan.computation_costs(scale).items() if name in names}
    for name, cost in costs.items():
        print(f"{cost:8.0f}  computation {name}")
    total = sum(run.core_seconds for run in chosen) + sum(costs.values())
    budget = plan.BUDGET_CORE_S.get(scale)
    of = f" of {budget}" if budget else ""
    over = ": over the budget" if budget and total > budget else ""
    print(f"{total:8.0f}  core-seconds in {len(chosen)} runs{of}{over}")


@app.command()
def check() -> None:
    """Validate every study at every scale, sparsity configurations included."""
    from sparse_lib.configure import configure

    seen: set[str] = set()
    for scale in plan.SCALES:
        for run in plan.all_runs(scale).values():
            config = run.spec.mask_config()
            if config is None:
                continue
            level_and_steps = run.spec.final_sparsity, run.spec.recipe.steps
            text = json.dumps([config, level_and_steps], sort_keys=True)
            if text in seen:
                continue
            seen.add(text)
            where = f"{run.studies[0]}.yaml: methods.{run.spec.method}"
            try:
                configure(config)
            except (ValueError, TypeError) as error:
                raise plan.SpecError(f"{where}.sparsity: {error}") from None
            wanted, num_steps = level_and_steps
            reached = _last_sparsity(config, num_steps)
            if reached is not None and abs(reached - wanted) > 1e-6:
                raise plan.SpecError(
                    f"{where}.final_sparsity is {wanted}, but {where.split()[1]}.sparsity ends at "
                    f"{reached:g} at scale {scale}; they must be equal"
                )


def _last_sparsity(config: dict, num_steps: int) -> float | None:
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


@app.command()
def prepare(
    data: Annotated[str, typer.Option(help="a folder of resources/data, as in run ids")],
    mirror: Mirror = None,
    online: Annotated[
        bool, typer.Option(help="ask the hub for what is not mirrored, as HF_HUB_OFFLINE=0 does")
    ] = False,
) -> None:
    """Prepare one dataset under resources/data."""
    task, section = plan.find_data(data)
    offline = not online and os.environ.get("HF_HUB_OFFLINE") != "0"
    tasks.get(task).prepare(
        section, out=data_folder(data), mirror=mirror_root(mirror), offline=offline
    )


@app.command()
def train(
    run: RunId,
    device: str = "cpu",
    execution: Annotated[str, typer.Option(help="auto, dense or skip")] = "auto",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    log: Annotated[Path | None, typer.Option(help="also write the status lines here")] = None,
) -> None:
    """Train one run, or go on where an interrupted one stopped."""
    from experiments.training import loop as training

    chosen = plan.find_run(run)
    first = chosen.first and run_folder(plan.find_run(chosen.first)) / "model"
    try:
        training.train(
            chosen.spec,
            code_hash=plan.training_code_hash(chosen.spec),
            command=f"snakemake rerun --config run={run}",
            data_dir=data_folder(chosen.data_label),
            out=run_folder(chosen),
            state_dir=paths.state(chosen.id, chosen.spec_hash),
            num_threads=threads,
            device=device,
            execution=execution,
            first=first,
            log=log,
        )
    except (FloatingPointError, ValueError, RuntimeError, OSError) as error:
        # The rule sends stderr to a file; standard output reaches who waits.
        training.say(f"Error: {error}", None)
        raise


@app.command("run")
def run_single(
    params: Annotated[Path, typer.Option("--params", "-p", help="YAML file of the run")],
    model_dir: Annotated[Path, typer.Option("--model_dir", "-o", help="folder of its results")],
    mode: Annotated[
        str, typer.Option("--mode", "-m", help="train, eval or train_and_eval")
    ] = "train",
    checkpoint_path: Annotated[
        Path | None, typer.Option("--checkpoint_path", help="safetensors file to begin with")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max_steps", min=1, help="bound on the optimizer steps")
    ] = None,
    eval_steps: Annotated[
        int | None, typer.Option("--eval_steps", min=1, help="bound on the evaluated batches")
    ] = None,
    mirror: Mirror = None,
) -> None:
    """Train or evaluate one run from one YAML file, outside of the studies."""
    from experiments.training import single

    scores = single.run(
        mode,
        params,
        model_dir,
        checkpoint=checkpoint_path,
        max_steps=max_steps,
        eval_steps=eval_steps,
        mirror=mirror_root(mirror),
    )
    if scores:
        print(json.dumps(scores))


@app.command()
def evaluate(run: RunId, mirror: Mirror = None) -> None:
    """Score a trained run with its suite, and write its record."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    chosen = plan.find_run(run)
    folder = run_folder(chosen)
    module = importlib.import_module(tasks.get(chosen.spec.task).EVALUATION)
    try:
        module.evaluate(
            folder / "model",
            data_folder(chosen.data_label),
            chosen.spec.suite,
            out=folder / "eval.json",
            mirror=mirror_root(mirror),
        )
    except ValueError as error:
        raise plan.SpecError(str(error)) from error


@app.command()
def compute(name: str, scale: Scale = "quick") -> None:
    """Make the tables of one computation under results/<scale>/computations."""
    from experiments import computations

    computations.write(name, scale, Path("results") / scale / "computations" / name)


@app.command()
def record(run: RunId) -> None:
    """Merge a run's files into its small record."""
    from experiments.store import records

    folder = run_folder(plan.find_run(run))
    value = records.make_record(
        folder / "train.json", folder / "eval.json", folder / "metrics.jsonl"
    )
    records.write_record(value, folder / "record.json")


def study_dict(study: str, scale: str) -> dict:
    """What analysis and report know of a study."""
    return plan.study_as_dict(plan.load_study(study), scale)


def study_folder(study: str, scale: str) -> Path:
    """Where a study's collected tables lie."""
    return Path("results") / scale / study


def page_folder(study: str, scale: str) -> Path:
    """Where a study's page lies."""
    return Path("reports") / scale / study


@app.command()
def collect(
    study: StudyName, scale: Scale, files: Annotated[list[Path] | None, typer.Argument()] = None
) -> None:
    """Collect the records of a study into tidy tables."""
    from experiments.store import records

    folder = study_folder(study, scale)
    kept = folder / "records"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    files = files or []
    for path in files:
        name = path.parent.name if path.name == "record.json" else path.stem
        shutil.copy(path, kept / f"{name}.json")
    records.collect(files, study_dict(study, scale), folder / "records.csv")


def read_study(study: str, scale: str) -> tuple:
    """Records, curves and the study's dict: what every table and figure takes.

    Raises:
        plan.SpecError: If there is no such study or scale, or it has no results.
    """
    from experiments.store import records

    check_choice("scale", scale, list(SCALES))
    folder, facts = study_folder(study, scale), study_dict(study, scale)
    if not (folder / "records.csv").is_file():
        raise plan.SpecError(
            f"study {study!r} has no results at scale {scale!r} yet: run "
            f"`snakemake reproduce --config scale={scale} study={study}`"
        )
    try:
        rows = records.read_records(folder / "records.csv")
    except ValueError as error:
        raise plan.SpecError(str(error)) from None
    return rows, records.read_curves(folder / "curves.csv"), facts


@app.command()
def figure(
    name: str,
    study: StudyName,
    scale: Scale = "quick",
    x: Annotated[
        str | None,
        typer.Option(help="draw over this axis only: tokens, steps, flops", metavar="AXIS"),
    ] = None,
) -> None:
    """Draw one figure of a study from its records."""
    from experiments.analysis import figures

    check_choice("figure", name, figures.names())
    if x is not None:
        if not figures.x_axes(name):
            raise plan.SpecError(f"x is {x!r}, but figure {name!r} has no other axis than its own")
        check_choice("x", x, figures.x_axes(name))
    facts = read_study(study, scale)
    figures.write(name, *facts, page_folder(study, scale) / "figures", x=x)


@app.command()
def table(name: str, study: StudyName, scale: Scale = "quick") -> None:
    """Make one table of a study from its records."""
    from experiments.analysis import tables

    check_choice("table", name, tables.names())
    tables.write(name, *read_study(study, scale), page_folder(study, scale) / "tables")


@app.command()
def claims(
    scale: Scale = "quick",
    study: Annotated[str | None, typer.Option(help="write this study's ledger")] = None,
    every: Annotated[bool, typer.Option(help="print claims without a test too")] = False,
) -> None:
    """Write the ledger of a study, or print those of a scale: the published ones if it has none."""
    from experiments.analysis.claims import ledger as claims_ledger

    if study is not None:
        records, _, facts = read_study(study, scale)
        claims_ledger.write(records, facts, study_folder(study, scale) / "claims.csv")
        return
    from rich.console import Console

    from experiments.cli import terminal

    check_choice("scale", scale, list(SCALES))
    made = {name: study_folder(name, scale) / "claims.csv" for name in plan.study_names()}
    title = f"scale {scale}"
    if not any(path.is_file() for path in made.values()):
        made = {name: plan.REFERENCE.parent / name / "claims.csv" for name in made}
        title = f"as published; scale {scale} has no results yet"
    for name, path in made.items():
        if path.is_file():
            rows = claims_ledger.read(path)
            rows = rows[rows["role"] != ""] if not every else rows
            table = terminal.ledger(rows)
            table.title = f"Claims of {name}, {title}"
            Console().print(table)


@app.command()
def compare(runs: Annotated[list[str], typer.Argument(help="run ids")]) -> None:
    """Print runs side by side: finished ones of this folder, else committed records."""
    from rich.console import Console

    from experiments.cli import terminal
    from experiments.store import records

    found = []
    for name in runs:
        run = plan.find_run(name)
        here = run_folder(run) / "record.json"
        path = here if here.is_file() else run.reference
        if not path.is_file():
            raise plan.SpecError(f"run {name} has no record, neither here nor among the committed")
        found.append(records.read_json(path))
    Console().print(terminal.compare(found))


@app.command()
def report(study: StudyName, scale: Scale) -> None:
    """Write the page of a study."""
    from experiments.report import render

    read_study(study, scale)
    folder, page = study_folder(study, scale), page_folder(study, scale)
    render.render_study(
        study_dict(study, scale),
        folder / "records.csv",
        folder / "curves.csv",
        folder / "records",
        page / "figures",
        page / "tables",
        folder / "claims.csv",
        page,
    )


@app.command()
def index(scale: Scale) -> None:
    """Write the front page over all studies of a scale."""
    from experiments.report import render

    names = [name for name in plan.study_names() if page_folder(name, scale).is_dir()]
    studies = [study_dict(name, scale) for name in names]
    render.render_index(studies, scale, Path("results") / scale, Path("reports") / scale)


@app.command()
def archive(scale: Scale, study: str = "all") -> None:
    """Write Snakemake's own report of a scale: reports/<scale>/archive.html."""
    from experiments.report import archive as snakemake_report

    snakemake_report.write(scale, study, Path("reports") / scale / "archive.html")


@app.command()
def publish(scale: Scale) -> None:
    """Make the report of a scale the committed reference, its records included."""
    from experiments.analysis import figures
    from experiments.report import readme, render

    render.publish(Path("reports") / scale, Path("reports"))
    captions = {
        name: figures.findings(name, *read_study(study, scale))
        for study, name in readme.FIGURES
        if (study_folder(study, scale) / "records.csv").is_file()
    }
    readme.update(Path("README.md"), Path("reports"), scale, Path("results") / scale, captions)
    keep(scale)


@app.command()
def where(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Print where the report of the configured scale is, and the command behind each number.

    Takes the arguments of `snakemake reproduce`: ``where -- --config scale=smoke study=flops``.
    """
    import pandas as pd
    import yaml

    from experiments.report import provenance

    chosen = yaml.safe_load((plan.ROOT / "experiments/config.yaml").read_text())
    chosen |= dict(word.split("=", 1) for word in arguments or [] if "=" in word)
    folder = Path("reports") / chosen["scale"]
    if (folder / "commands.csv").is_file():
        table = pd.read_csv(folder / "commands.csv", keep_default_na=False)
        if chosen["study"] != "all":
            table = table[table["study"] == chosen["study"]]
        print("The one command that repeats the runs behind each row of each table:")
        for line in provenance.listing(table):
            print(line)
        print(f"The same, row by row: {folder}/commands.csv")
    print(f"The report is {folder}/index.html")


@app.command()
def keep(scale: Scale = "quick") -> None:
    """Copy records and tables of a scale to results/reference, to be committed."""
    for run in plan.all_runs(scale).values():
        path = run_folder(run) / "record.json"
        if path.is_file():
            run.reference.parent.mkdir(parents=True, exist_ok=True)
            run.reference.write_text(path.read_text())
            print(run.reference.relative_to(plan.ROOT))
    # Curves are in the records already.
    for name in plan.study_names():
        folder = study_folder(name, scale)
        if not any((folder / "records").glob("*.json")):
            continue
        trials = plan.load_study(name).trials
        tables = {"records": "trials"} if trials else {"records": "records", "claims": "claims"}
        for table, kept_as in tables.items():
            if (folder / f"{table}.csv").is_file():
                kept = plan.REFERENCE.parent / name / f"{kept_as}.csv"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text((folder / f"{table}.csv").read_text())
                print(kept.relative_to(plan.ROOT))
    for path in sorted((Path("results") / scale / "computations").glob("*/*.csv")):
        kept = plan.REFERENCE.parent / path.parent.name / path.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(path.read_text())
        print(kept.relative_to(plan.ROOT))


def main() -> None:
    """Run a command; a user's mistake ends in one sentence, not in a traceback."""
    try:
        app()
    except (plan.SpecError, RuntimeError, FloatingPointError, OSError) as error:
        if os.environ.get("SPARSE_DEBUG"):
            raise
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
