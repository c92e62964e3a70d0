"""One run from one YAML file, outside of studies: train, evaluate, or both.

The file has the sections ``model``, ``data`` and ``recipe`` of a study's grid, and optionally
``sparsity`` in any form that `sparse_lib.configure` takes, ``transform`` and ``seed``. Masked
weights are NaN in the checkpoint (the sideband form), so one file holds weights and masks.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from experiments import tasks
from experiments.digest import file_digest
from experiments.errors import UserError, refusals
from experiments.specs.code import ROOT, training_code_hash
from experiments.specs.expand import load_single
from experiments.specs.run import FirstPhase, RunSpec
from experiments.specs.schema import SpecError, check_choice
from experiments.store import paths
from experiments.store.io import read_cache, write_json
from experiments.training import loop as training
from experiments.training.trainer import Trainer, say
from sparse_lib.checkpoint import export_safetensors
from sparse_lib.configure import configure
from sparse_lib.core.mistakes import unreached

MODES = ("train", "eval", "train_and_eval")


def run(
    mode: str,
    params: Path,
    model_dir: Path,
    *,
    checkpoint: Path | None = None,
    max_steps: int | None = None,
    eval_steps: int | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Do what the mode says, in ``model_dir``.

    Args:
        model_dir: gets ``checkpoint_<step>.safetensors`` and ``eval.json``, and what a run of a
            study has: ``train.json``, ``metrics.jsonl``, ``model/``. An interrupted training goes
            on from its ``state/``.
        checkpoint: safetensors file of any layout of `sparse_lib.checkpoint` with the weights to
            begin with; an evaluation without one takes the last of ``model_dir``.
        eval_steps: bound on the batches of an evaluation; None takes the whole validation split.

    Returns:
        Scores on the validation split; empty after ``train``.

    Raises:
        SpecError: if an argument or the file is wrong.
    """
    check_choice("mode", mode, MODES)
    spec = load_single(params, run_id=Path(os.path.abspath(model_dir)).name, max_steps=max_steps)
    place = f"{params.name}: sparsity"
    with refusals(place):  # before anything is prepared
        algorithm = configure(spec.mask_config())
        notes = [] if algorithm is None else unreached(algorithm, spec.recipe.steps)
    for note in notes if mode != "eval" else ():
        say(f"Warning: {place}: {note}", None)
    data_dir = tasks.ensure(spec.task, spec.data, paths.data(spec.data.label))
    if mode != "eval":
        files = f"--params {shlex.quote(params.name)} --model_dir {shlex.quote(spec.id)}"
        command = f"python -m experiments run --mode train {files}"
        checkpoint = _train(spec, model_dir, data_dir, checkpoint, command, device)
    if mode == "train":
        return {}
    checkpoint = checkpoint or _last_checkpoint(model_dir)
    trainer = _trainer(spec, data_dir, checkpoint, device)
    if eval_steps is not None:
        samples = {f"validation_{trainer.task.unit}": eval_steps * trainer.task.units_per_step}
        trainer.task.recipe = spec.recipe.model_copy(update=samples)
    scores = trainer.validate(full=eval_steps is None)
    write_json(model_dir / "eval.json", {"checkpoint": checkpoint.name, **scores})
    return scores


def _train(
    spec: RunSpec,
    model_dir: Path,
    data_dir: Path,
    checkpoint: Path | None,
    command: str,
    device: str,
) -> Path:
    """Train unless that is done; returns the checkpoint."""
    ours = (model_dir / "state.lock").exists() or (model_dir / "train.json").exists()
    if (model_dir / "model").exists() and not ours:
        raise SpecError(
            f"model_dir is {str(model_dir)!r}, whose 'model' is of no training and would be "
            "replaced; name another folder"
        )
    if checkpoint is not None:
        spec = _starting_from(spec, checkpoint)
    _refuse_other_settings(spec, model_dir)
    if not training.finished(model_dir, spec):
        try:
            training.train(
                spec,
                code_hash=training_code_hash(
                    spec.model_copy(update={"sparsity": None}),
                    *sorted((ROOT / "sparse_lib" / "algorithms").glob("*.py")),  # of any group
                ),
                command=command,
                data_dir=data_dir,
                out=model_dir,
                state_dir=model_dir / "state",
                device=device,
                first=checkpoint,
            )
        except UserError:
            if not (model_dir / "state").exists():  # nothing was trained
                (model_dir / "spec.json").unlink(missing_ok=True)
            raise
    model = _trainer(spec, data_dir, model_dir / "model", "cpu").model
    path = model_dir / f"checkpoint_{spec.recipe.steps}.safetensors"
    with training.writing(model_dir):
        return export_safetensors(model, path, layout="nan")


def _refuse_other_settings(spec: RunSpec, model_dir: Path) -> None:
    """Raise `SpecError` where a folder holds a training, finished or not, of another spec."""
    note, now = model_dir / "spec.json", spec.to_json()
    before = read_cache(note) or read_cache(model_dir / "train.json").get("spec") or now
    if apart := [k for k in now | before if k != "id" and before.get(k) != now.get(k)]:
        raise SpecError(
            f"model_dir is {str(model_dir)!r}, which holds a training with another "
            f"{' and '.join(apart)}; name another folder, or delete this one"
        )
    model_dir.mkdir(parents=True, exist_ok=True)
    write_json(note, now)


def _trainer(spec: RunSpec, data_dir: Path, weights: Path, device: str) -> Trainer:
    """A trainer that holds these weights and has not begun."""
    # Without an algorithm the masks are exactly those of the weights.
    spec = _starting_from(spec.model_copy(update={"sparsity": None}), weights)
    return Trainer(spec, data_dir=data_dir, device=device, first=weights)


def _starting_from(spec: RunSpec, weights: Path) -> RunSpec:
    """The spec with the file or folder of the weights that it starts from."""
    file = weights / "model.safetensors" if weights.is_dir() else weights
    if not file.is_file():
        raise SpecError(f"checkpoint_path is {str(weights)!r}, but there is no such file")
    start = FirstPhase(run=weights.name, spec_hash=file_digest(file), densify=False)
    return spec.model_copy(update={"starts_from": start})


def _last_checkpoint(model_dir: Path) -> Path:
    """The checkpoint with the most steps."""
    steps = {
        int(number[1]): path
        for path in model_dir.glob("checkpoint_*.safetensors")
        if (number := re.fullmatch(r"checkpoint_([0-9]+)", path.stem))
    }
    if not steps:
        raise SpecError(
            f"{model_dir} holds no checkpoint_<step>.safetensors; train there, or name a file by "
            "--checkpoint_path"
        )
    return steps[max(steps)]
