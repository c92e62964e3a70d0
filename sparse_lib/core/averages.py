"""Masks of averaged models are those of the model, not averages of them."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from sparse_lib.core.guard import all_guards, mask_name


def keep_masks_of_averages() -> None:
    """Have ``AveragedModel(use_buffers=True)`` copy masks, whatever its averaging function.

    Torch averages all buffers then. A moving average of bools is true wherever a mask was ever
    true, and torch's plain average subtracts, which bools do not. So masks are out of the way
    meanwhile; the averaged weights obey the copied ones.
    """
    average = AveragedModel.update_parameters

    @functools.wraps(average)
    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        own, others = all_guards(self.module), all_guards(model)
        if len(own) < len(others):
            raise ValueError(
                "the average was made before the model had its masks, so it has none; make "
                f"{type(self).__name__} after sparsity.apply(model)"
            )
        pairs = list(zip(own, others)) if self.use_buffers else []
        owners = {id(g.module): g.module for pair in pairs for g in pair}.values()
        buffers = [(module, dict(module._buffers)) for module in owners]
        for guard in (g for pair in pairs for g in pair):
            del guard.module._buffers[mask_name(guard.name)]
        try:
            average(self, model)
        finally:
            for module, known in buffers:
                module._buffers.clear()
                module._buffers.update(known)
        for mine, theirs in pairs:
            with torch.no_grad():
                mine.mask.copy_(theirs.mask)
                mine.select_weight()

    AveragedModel.update_parameters = update_parameters  # type: ignore[method-assign]


keep_masks_of_averages()
