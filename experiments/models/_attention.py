"""Attention for CPUs, whose kernel for bfloat16 takes several times as long as plain products."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

#: Name of `attend` for ``set_attn_implementation``; an exported config does not hold it.
ATTENTION = "sdpa_or_products_on_cpu"


def attend(module: torch.nn.Module, *tensors: Any, **options: Any) -> tuple[torch.Tensor, None]:
    """``sdpa`` of transformers, but plain products where a CPU trains in bfloat16.

    Args:
        tensors: query, key, value, each batch x heads x length x width, and the mask or None.
    """
    if not torch.is_autocast_enabled("cpu"):
        return sdpa_attention_forward(module, *tensors, **options)
    query, key, value, bias = tensors
    scores = query @ key.transpose(-1, -2) * options["scaling"] + bias
    return (scores.softmax(-1, torch.float32) @ value).transpose(1, 2), None


def mask(*sizes: Any, **options: Any) -> torch.Tensor | None:
    """The mask that `attend` takes: in its own products it is added to the scores."""
    return (eager_mask if torch.is_autocast_enabled("cpu") else sdpa_mask)(*sizes, **options)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, mask)
