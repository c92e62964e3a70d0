"""Masks of averaged models are those of the model, not averages of them."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from sparse_lib.core.guard import MaskGuard, guards


def _guards(model: nn.Module) -> list[MaskGuard]:
    return [guard for module in model.modules() for guard in guards(module).values()]


def keep_masks_of_averages() -> None:
    """Have ``AveragedModel(use_buffers=True)`` copy masks.

    Torch averages all buffers then. A bool average is true wherever a mask was ever true, so an
    average under moving masks would get their union. The averaged weights obey the copied masks.
    """
    average = AveragedModel.update_parameters

    @functools.wraps(average)
    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        average(self, model)
        if self.use_buffers:
            for mine, theirs in zip(_guards(self.module), _guards(model)):
                with torch.no_grad():
                    mine.mask.copy_(theirs.mask)
                    mine.select_weight()

    AveragedModel.update_parameters = update_parameters  # type: ignore[method-assign]


keep_masks_of_averages()
