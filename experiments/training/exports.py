"""Masks and states in a run's folder ``model``, and how a model is read back."""

from __future__ import annotations

from pathlib import Path

import torch

from sparse_lib.checkpoint import load_checkpoint

#: Beside the exported weights: the masks that they were trained with.
MASKS = "masks.safetensors"
#: Folder beside them with the states that other runs continue, named by their steps.
STATES = "states"


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
