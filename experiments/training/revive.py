"""Initial values of revived weights where a sparse model continues densely.

Sparse pre-training and dense fine-tuning starts them at zero and names a scaled normal as the
alternative (SPDF, Thangarasa et al. 2023, section 2.2).
"""

from __future__ import annotations

import hashlib
import math

import torch


@torch.no_grad()
def scaled_normal(model: torch.nn.Module, masks: dict[str, torch.Tensor], *, seed: int) -> None:
    """Draw weights that masks have hidden from a normal distribution, in place.

    Its standard deviation is ``initializer_range / sqrt(2 * num_hidden_layers)`` of the model's
    config, the scaled normal of Megatron-LM (Shoeybi et al. 2019). A weight's draw depends on the
    seed and its name alone.

    Args:
        masks: full parameter name to the mask that it had.
    """
    config = model.config
    std = config.initializer_range / math.sqrt(2 * config.num_hidden_layers)  # type: ignore
    parameters = dict(model.named_parameters())
    for name, mask in masks.items():
        key = hashlib.sha256(f"revive:{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
        drawn = torch.randn(mask.shape, generator=generator).mul_(std)
        weight = parameters[name]
        weight.copy_(torch.where(mask.bool(), weight, drawn.to(weight)))
