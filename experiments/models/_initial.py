"""Decoders whose weights start otherwise than transformers', named as its own, since a name decides
which loss they take. Sparse-Wide builds a wider one from the class, so that it starts alike."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn


class LlamaForCausalLM(transformers.LlamaForCausalLM):
    """Weights as PyTorch draws them: linear layers uniform, embeddings standard normal."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.reset_parameters()


class GPT2LMHeadModel(transformers.GPT2LMHeadModel):
    """Learned positions start as sinusoids (Vaswani et al. 2017, section 3.5), with the deviation
    of the other weights."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        positions, width = config.n_positions, config.n_embd
        powers = torch.arange(0, width, 2) / width
        angles = torch.arange(positions)[:, None] / 10_000**powers
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]
        with torch.no_grad():
            self.transformer.wpe.weight.copy_(2**0.5 * config.initializer_range * waves)
