"""Start a run from the weights or the state of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from experiments.digest import file_digest
from experiments.errors import UserError
from experiments.specs.run import RunSpec
from experiments.store.paths import MASKS, STATES
from experiments.tasks import Task
from sparse_lib.checkpoint import densify, load_checkpoint, read_safetensors


def take_over(model: torch.nn.Module, path: Path, spec: RunSpec, task: Task) -> str:
    """Give a model the weights and masks of a file; returns the hash of the file.

    Args:
        path: the ``model`` folder of a finished run, or a safetensors file of any layout of
            `sparse_lib.checkpoint`.
        spec: of the run that begins; its ``starts_from`` says what becomes of the masks.
        task: refuses the folder of a run whose vocabulary or the like is another one.

    Raises:
        UserError: if they do not fit the model.
    """
    from safetensors.torch import load_file, load_model

    start = spec.starts_from
    assert start is not None
    if is_run := path.is_dir():
        task.check_start(path)
    try:
        if is_run:
            kept, path = path / MASKS, path / "model.safetensors"
            load_model(model, path)
            values, masks = model.state_dict(), load_file(kept) if kept.is_file() else {}
        else:
            values, masks = read_safetensors(path)
        if masks or not is_run:
            load_checkpoint(model, values | {f"{name}_mask": mask for name, mask in masks.items()})
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the weights of {start.run} do not fit the model of {spec.id}: "
            f"{' '.join(str(error).split())}"
        ) from None
    if start.densify:
        densify(model)
    return file_digest(path)


def kept_state(path: Path, spec: RunSpec, data_hash: str) -> tuple[dict[str, Any], str]:
    """The state that another run kept at a step, and the hash of its file.

    Raises:
        UserError: if that run kept no such state, or was trained on other data.
    """
    start = spec.starts_from
    assert start is not None and start.step is not None
    file = path / STATES / f"{start.step}.pt"
    if not file.is_file():
        raise UserError(f"{file} is missing: {start.run} kept no state of step {start.step}")
    state = torch.load(file, map_location="cpu", weights_only=True)
    if state["origin"]["data"] != data_hash:
        raise UserError(f"{start.run} was trained on other data than {spec.id} is")
    return state, file_digest(file)
