"""Attention for CPUs, whose kernel for bfloat16 takes two to three times as long as for float32."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: Name of `attend` for ``set_attn_implementation``; an exported config does not hold it.
ATTENTION = "sdpa_float32_on_cpu"


def attend(module: torch.nn.Module, *tensors: Any, **options: Any) -> tuple[torch.Tensor, None]:
    """``sdpa`` of transformers, in float32 where a CPU trains in bfloat16.

    Args:
        tensors: query, key, value, each batch x heads x length x width, and the mask or None.
    """
    query, key, value, mask = tensors
    if query.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return sdpa_attention_forward(module, *tensors, **options)
    with torch.autocast("cpu", enabled=False):
        wide = query.float(), key.float(), value.float()
        output, _ = sdpa_attention_forward(module, *wide, mask, **options)
    return output.to(query.dtype), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
