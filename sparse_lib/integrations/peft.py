"""LoRA on a pruned model, merged without losing its zeros."""

from __future__ import annotations

import types
from typing import Any

from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_lib.core.group import Group
from sparse_lib.core.guard import mask_name
from sparse_lib.finetune import has_zeros, keep_zeros_of


def keep_zeros(model: nn.Module) -> Group:
    """Keep the zeros of a pruned base model, in training and once adapters are merged.

    A LoRA layer computes ``W x + s B A x``; for a linear layer (``Linear``, or the ``Conv1D`` of
    GPT-2) whose weight ``W`` has a mask ``M``
    it computes ``(W + s M * (B A)) x`` from now on, so what is trained is what
    ``merge_and_unload`` merges, and the merged weight is zero where ``W`` is. The product ``B A``
    is formed in every forward pass, which costs as much memory as the weight.

    Call it after ``get_peft_model``; an adapter that is added later needs another call.

    Args:
        model: What ``get_peft_model`` returned.

    Returns:
        The algorithm that holds the masks; it needs no optimizer while the base is frozen.

    Raises:
        ValueError: If no weight of the base has zeros, or an adapter cannot be masked.
    """
    from transformers.pytorch_utils import Conv1D  # peft needs transformers itself

    adapted: list[Any] = [m for m in model.modules() if isinstance(m, LoraLayer)]
    own = {id(p) for m in adapted for n, p in m.named_parameters() if "lora_" in n}

    def of_the_base(name: str, param: Tensor, whole: nn.Module) -> bool:
        return id(param) not in own and has_zeros(name, param, whole)

    group = keep_zeros_of(model, of_the_base)
    for layer in adapted:
        base = layer.get_base_layer()
        if base._buffers.get(mask_name("weight")) is None:
            continue
        uses_dora = any(layer.use_dora.values())
        transposed = isinstance(base, Conv1D)
        if not isinstance(base, nn.Linear | Conv1D) or transposed != bool(layer.fan_in_fan_out):
            raise ValueError(
                f"the adapter of a {type(base).__name__} with fan_in_fan_out="
                f"{layer.fan_in_fan_out} cannot be masked; LoRA of a Linear or of the Conv1D of "
                "transformers with fan_in_fan_out=True can"
            )
        if uses_dora:
            raise ValueError("an adapter with DoRA cannot be masked; LoRA without DoRA can")
        if "_unmasked_delta" not in vars(layer):
            layer._unmasked_delta = layer.get_delta_weight
            layer.get_delta_weight = types.MethodType(_masked_delta, layer)
            layer.forward = types.MethodType(_masked_forward, layer)
    return group


def _masked_delta(layer: Any, adapter: str) -> Tensor:
    """``s M * (B A)`` of one adapter, of the weight's shape; what peft merges."""
    delta = layer._unmasked_delta(adapter)
    return delta * layer.get_base_layer().weight_mask.to(delta.device)


def _masked_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The base layer and the masked adapters."""
    if layer.disable_adapters and layer.merged:
        layer.unmerge()
    result = layer.base_layer(x, *args, **kwargs)
    if layer.disable_adapters or layer.merged:
        return result
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            mask = layer.get_base_layer().weight_mask
            down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            product = (up @ down).T if layer.fan_in_fan_out else up @ down
            delta = layer.scaling[adapter] * mask * product
            delta = delta.T if layer.fan_in_fan_out else delta
            inputs = layer.lora_dropout[adapter](x.to(delta.dtype))
            result = result + F.linear(inputs, delta.to(inputs.dtype)).to(result.dtype)
    return result
