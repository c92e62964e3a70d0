"""Weights and masks in a run's folder ``model``: read back, and taken over by another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from experiments.errors import UserError
from experiments.specs.digest import file_digest
from experiments.specs.run import RunSpec
from sparse_lib.checkpoint import densify, load_checkpoint, read_safetensors

#: Beside the exported weights: the masks that they were trained with.
MASKS = "masks.safetensors"


def as_buffers(masks: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Masks under the names that a layout with mask buffers gives them."""
    return {f"{name}_mask": mask for name, mask in masks.items()}


def load(model: torch.nn.Module, folder: Path) -> None:
    """Load weights and masks of an exported model.

    Raises:
        RuntimeError: If they do not fit.
    """
    from safetensors.torch import load_file, load_model

    load_model(model, folder / "model.safetensors")
    if (folder / MASKS).is_file():
        load_checkpoint(model, {**model.state_dict(), **as_buffers(load_file(folder / MASKS))})


def take_over(model: torch.nn.Module, path: Path, spec: RunSpec, task: Any) -> str:
    """Give a model the weights and masks of a file; returns the hash of the file.

    Args:
        path: the ``model`` folder of a finished run, or a safetensors file of any layout of
            `sparse_lib.checkpoint`.
        spec: of the run that begins; its ``starts_from`` says what becomes of the masks.
        task: refuses the folder of a run whose vocabulary or the like is another one.

    Raises:
        UserError: if they do not fit the model.
    """
    start = spec.starts_from
    assert start is not None
    if path.is_dir():
        task.check_start(path)
    try:
        if path.is_dir():
            load(model, path)
            path /= "model.safetensors"
        else:
            weights, masks = read_safetensors(path)
            load_checkpoint(model, {**weights, **as_buffers(masks)})
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the weights of {start.run} do not fit the model of {spec.id}: "
            f"{' '.join(str(error).split())}"
        ) from None
    if start.densify:
        densify(model)
    return file_digest(path)
