"""Commands that make results: data, runs, scores, records and computed tables."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, get_args

import typer
import yaml

from experiments import data as datasets
from experiments import tasks
from experiments.cli.options import RunId, Scale, app, check_device
from experiments.errors import UserError, explained, sentence
from experiments.evaluation import model as scoring
from experiments.specs.code import training_code_hash
from experiments.specs.lookup import find_data, find_run, rerun_command
from experiments.specs.read import computation_names
from experiments.specs.run import Run
from experiments.specs.schema import SpecError, check_choice
from experiments.store import paths
from experiments.store.io import read_cache, read_json


@app.command()
def prepare(
    data: Annotated[
        str,
        typer.Option(
            help="a folder of resources/data, as in run ids; or a dataset's name, which only "
            "fetches it"
        ),
    ],
    mirror: Annotated[
        Path | None, typer.Option(help="folder with <root>/<hub id> datasets, as SPARSE_MIRROR")
    ] = None,
) -> None:
    """Prepare one dataset under resources/data, or fetch what it is made from.

    With HF_HUB_OFFLINE=0 the hub is asked for what is not mirrored.
    """
    if mirror is not None:
        os.environ[datasets.MIRROR_VARIABLE] = str(datasets.mirror_root(mirror))
    if data in datasets.names():
        fetch = datasets.get(data).fetch
        if fetch is None:
            raise SpecError(f"data is {data!r}, which travels with the repository: fetch nothing")
        print(fetch())
        return
    task, section = find_data(data)
    offline = os.environ.get("HF_HUB_OFFLINE") != "0"
    tasks.get(task).prepare(section, out=paths.data(data), offline=offline)


@app.command()
def train(
    run: RunId,
    device: str = "cpu",
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16 or tf32; default: as the recipe says")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="default: as the recipe says")
    ] = None,
    execution: Annotated[str, typer.Option(help="auto, dense or skip")] = "auto",
    threads: Annotated[int, typer.Option(min=1, max=1024)] = 1,
    log: Annotated[Path | None, typer.Option(help="also write the status lines here")] = None,
    score: Annotated[
        bool, typer.Option("--score", help="also score it, so that `evaluate` finds the result")
    ] = False,
) -> None:
    """Train one run, or go on where an interrupted one stopped."""
    check_choice("execution", execution, ("auto", "dense", "skip"))
    chosen = find_run(run)
    if precision is not None:
        check_choice("precision", precision, get_args(tasks.Precision))
    check_device(device)
    if score:
        scoring.quiet_and_offline()
    from experiments.training import loop as training
    from experiments.training.trainer import say

    folder, state_dir = paths.run(chosen.scale, chosen.id), paths.state(chosen.id, chosen.spec.hash)
    start, first = chosen.spec.starts_from, chosen.first and paths.run(chosen.scale, chosen.first)
    trained = read_cache(first / "train.json").get("spec_hash") if first else None
    if start and trained not in (None, start.spec_hash):
        raise SpecError(f"{first} is of another spec than {start.run}: train that again")
    try:
        training.train(
            chosen.spec,
            code_hash=training_code_hash(chosen.spec),
            command=rerun_command([run]),
            data_dir=paths.data(chosen.spec.data.label),
            out=folder,
            state_dir=state_dir,
            num_threads=threads,
            device=device,
            precision=precision,
            compile=compile,
            execution=execution,
            first=first and first / "model",
            log=log,
            keep_states=score,
        )
    except (UserError, OSError) as error:
        # The rule sends stderr to a file; standard output reaches who waits.
        say(f"Error: {error}", None)
        raise
    if score:
        score_run(chosen, log)
        # Snakemake deletes the model of a job that dies, so the states go last.
        shutil.rmtree(state_dir, ignore_errors=True)


def score_run(run: Run, log: Path | None) -> None:
    """Score a trained run in this process, where torch and the model's code are loaded already.

    The result goes to the evaluation's cache only. Whatever fails, the trained model stands, and
    `evaluate` fails by the same: a bug shows its traceback here and there.
    """
    from experiments.training.trainer import say

    folder = paths.run(run.scale, run.id)
    try:
        with tempfile.TemporaryDirectory(prefix="score-") as scratch:
            scoring.evaluate_model(
                folder / "model",
                str(run.spec.suite),
                data_dir=paths.data(run.spec.data.label),
                out=Path(scratch) / "eval.json",
                cache=folder,
                task=run.spec.task,
            )
    except Exception as error:
        if explained(error):
            say(f"not scored yet: {sentence(error)}", log)
        else:
            traceback.print_exc()
            say(f"not scored yet, for a bug: {type(error).__name__}: {sentence(error)}", log)


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
    device: Annotated[
        str, typer.Option(help="auto, cpu, mps, cuda or cuda:<number>", metavar="NAME")
    ] = "cpu",
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
        device=device,
    )
    if scores:
        print(json.dumps(scores))


@app.command()
def evaluate(
    run: Annotated[str | None, typer.Option(help="a trained run, by its id")] = None,
    model: Annotated[
        Path | None, typer.Option(help="an exported model's folder, in place of a run")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="suite, or path of its YAML; a run has one of its own")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="folder of prepared data; default: what it was trained on")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file to write; default: eval-<suite>.json beside the model")
    ] = None,
) -> None:
    """Score a trained run or an exported model with a suite, and print its scores.

    A run that is scored with its own suite gets its record, too.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if (run is None) == (model is None):
        raise SpecError("give a run by --run or an exported model by --model, and not both")
    task = None
    if run is not None:
        chosen = find_run(run)
        task = chosen.spec.task
        folder = paths.run(chosen.scale, chosen.id)
        own = str(chosen.spec.suite)
        model, out = folder / "model", out or (None if suite else folder / "eval.json")
        data = data or paths.data(chosen.spec.data.label)
        suite = suite or own
    else:
        assert model is not None
        model = model / "model" if (model / "model").is_dir() else model
        if suite is None:
            raise SpecError("suite is missing: an exported model needs --suite")
        data = data or _data_of(model)
    if not model.is_dir():
        raise SpecError(f"{model} is no folder with an exported model; train the run first")
    if out is None:
        out = model.parent / f"eval-{paths.name('suite', Path(suite).stem)}.json"
    from rich import print as show_table

    from experiments.cli import terminal

    result = scoring.evaluate_model(model, suite, data_dir=data, out=out, task=task)
    if run is not None and suite == own and out == model.parent / "eval.json":
        from experiments.store.record import gather

        gather(model.parent)
    show_table(terminal.scores(result, f"{model}, suite {result['suite']}"))


def _data_of(model: Path) -> Path | None:
    """The prepared data that a model was trained on, if its run's file says so, or `export`'s."""
    file, exported = model.parent / "train.json", model / "run.yaml"
    if not exported.is_file() and not file.is_file():
        return None
    try:
        if exported.is_file():
            file, spec = exported, yaml.safe_load(exported.read_text("utf-8"))
        else:
            spec = read_json(file).get("spec")
        return paths.data(tasks.get(spec["task"]).Data(**spec["data"]).label)
    except (TypeError, KeyError, ValueError, ImportError, yaml.YAMLError):
        raise SpecError(f"{file} does not say which data it read; name it by --data") from None


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="folder to make")],
    run: Annotated[str | None, typer.Option(help="a trained run, by its id")] = None,
    model: Annotated[
        Path | None, typer.Option(help="folder of `run --model_dir`, in place of a run")
    ] = None,
) -> None:
    """Write a trained model in safetensors that transformers loads: an RO-Crate with a card."""
    from experiments.evaluation.publish import publish
    from experiments.report.model_card import card

    if (run is None) == (model is None):
        raise SpecError("give a run by --run or the folder of one by --model, and not both")
    if run is not None:
        chosen = find_run(run)
        model = paths.run(chosen.scale, chosen.id)
    assert model is not None
    print(publish(model, out, card))


@app.command()
def compute(
    name: str,
    scale: Scale = "quick",
    committed: Annotated[
        bool, typer.Option("--committed", help="take the tables of results/reference, if there")
    ] = False,
) -> None:
    """Make the tables of one computation under results/<scale>/computations."""
    check_choice("computation", name, computation_names())
    folder = paths.computation(scale, name)
    from experiments import computations

    if not (committed and computations.take_committed(name, folder)):
        computations.write(name, scale, folder)
