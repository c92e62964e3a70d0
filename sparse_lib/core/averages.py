"""Masks of averaged models are those of the model, not averages of them."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from sparse_lib.core.guard import all_guards, before_masks, mask_name

_average = AveragedModel.update_parameters


@functools.wraps(_average)
def _update_parameters(self: AveragedModel, model: nn.Module) -> None:
    """Copy masks in ``AveragedModel(use_buffers=True)``, whatever its averaging function.

    Torch averages all buffers then. A moving average of bools is true wherever a mask was ever
    true, and torch's plain average subtracts, which bools do not. So masks are out of the way
    meanwhile; the averaged weights obey the copied ones.
    """
    own, others = all_guards(self.module), all_guards(model)
    if len(own) < len(others):
        raise ValueError(
            "the average was made before the model had its masks, so it has none; make "
            f"{type(self).__name__} after sparsity.apply(model)"
        )
    pairs = list(zip(own, others)) if self.use_buffers else []
    masks = [(g.module._buffers, mask_name(g.name), g.mask) for pair in pairs for g in pair]
    for buffers, name, _ in masks:
        buffers[name] = None
    try:
        _average(self, model)
    finally:
        for buffers, name, mask in masks:
            buffers[name] = mask
    for mine, theirs in pairs:
        with torch.no_grad():
            mine.mask.copy_(theirs.mask)
            mine.select_weight()


@before_masks
def _copy_masks() -> None:
    AveragedModel.update_parameters = _update_parameters  # type: ignore[method-assign]
