"""LoRA on a pruned model, merged without losing its zeros."""

from __future__ import annotations

import types
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.codes import is_quantized
from sparse_lib.core.guard import all_guards, guards, mask_name
from sparse_lib.finetune import has_zeros, keep_zeros_of

#: Ways to begin an adapter that leave the base's weights as they are; peft's others do not.
_INITIAL = (True, False, "gaussian", "eva", "orthogonal")


def keep_zeros(model: nn.Module) -> SparsityAlgorithm:
    """Keep the zeros of a pruned base model, in training and once adapters are merged.

    A LoRA layer computes ``W x + s B A x``; for a linear layer (``Linear``, or the ``Conv1D`` of
    GPT-2) or a parameter (``target_parameters``, such as fused experts) whose weight ``W`` has a
    mask ``M`` it computes ``(W + s M * (B A)) x`` from now on, so what is trained is what
    ``merge_and_unload`` merges, and the merged weight is zero where ``W`` is. The product ``B A``
    is formed in every forward pass, which costs as much memory as the weight.

    Call it after ``get_peft_model``, and once more after an adapter was added or loaded. Masks
    that the base has already, by `sparse_lib.keep_zeros` or an earlier call, stay.

    Args:
        model: What ``get_peft_model`` returned.

    Returns:
        The algorithm that holds the masks; it needs no optimizer while the base is frozen.

    Raises:
        ValueError: If no weight of the base has zeros, or an adapter cannot be masked, as one of a
            quantized weight.
    """
    for name, config in getattr(model, "peft_config", {}).items():
        initial = getattr(config, "init_lora_weights", True)
        if initial not in _INITIAL:
            raise ValueError(
                f"init_lora_weights={initial!r} of the adapter {name!r} changes weights of the "
                f"base, zeros too; allowed: {', '.join(map(repr, _INITIAL))}"
            )
    held = _holder(model)
    adapters: list[Any] = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    within = {id(p) for layer in adapters for n, p in layer.named_parameters() if "lora_" in n}
    free = {
        id(param)
        for name, param in model.named_parameters()
        if id(param) not in within and not _is_held(model, name) and has_zeros(name, param, model)
    }
    for layer in adapters:
        base, name = layer.get_base_layer(), _weight_name(layer)
        if (weight := base._parameters.get(name)) is None or is_quantized(weight):
            why = "it has no weight of its own"
            if weight is not None:
                how = f"{type(weight).__name__} of {weight.dtype}"
                why = f"its weight is quantized, {how}; load the base in a float type"
            raise ValueError(f"the adapter of a {type(base).__name__} cannot be masked: {why}")
        if name in guards(base) or id(base._parameters.get(name)) in free:
            _check(layer)
    if free or held is None:
        algorithm: SparsityAlgorithm = keep_zeros_of(  # type: ignore[assignment]
            model, lambda _, param, whole: id(param) in free
        )
    else:
        algorithm = held
    for layer in adapters:
        if layer.get_base_layer()._buffers.get(mask_name(_weight_name(layer))) is None:
            continue
        if "_unmasked_delta" not in vars(layer):
            layer._unmasked_delta = layer.get_delta_weight
            layer.get_delta_weight = types.MethodType(_masked_delta, layer)
            forward = _masked_param_forward if _is_of_parameter(layer) else _masked_forward
            layer.forward = types.MethodType(forward, layer)
    return algorithm


def _is_of_parameter(layer: Any) -> bool:
    """Whether an adapter is one of ``target_parameters``, which may be nested."""
    return hasattr(layer, "parameter_name")


def _weight_name(layer: Any) -> str:
    return layer.parameter_name if _is_of_parameter(layer) else "weight"


def _holder(model: nn.Module) -> SparsityAlgorithm | None:
    """The algorithm that holds masks of a model; those of one that is gone are let go."""
    found: SparsityAlgorithm | None = None
    for guard in all_guards(model):
        owner = None if guard.driver is None else guard.driver.owner
        if isinstance(owner, SparsityAlgorithm):
            found = found or owner
        elif guard.owner is not None:
            guard.release()
    return found


def _is_held(model: nn.Module, name: str) -> bool:
    """Whether an algorithm holds the mask of a parameter."""
    path, _, leaf = name.rpartition(".")
    guard = guards(model.get_submodule(path)).get(leaf)
    return guard is not None and guard.owner is not None


def _check(layer: Any) -> None:
    """Refuse an adapter of a sparse weight that cannot be masked."""
    from transformers.pytorch_utils import Conv1D  # peft needs transformers itself

    kind = type(layer).__module__.split(".")[2]  # peft.tuners.<kind>.layer
    if kind != "lora":
        raise ValueError(f"an adapter of the kind {kind!r} cannot be masked; LoRA can")
    if _is_of_parameter(layer):
        return
    base = layer.get_base_layer()
    transposed = isinstance(base, Conv1D)
    if not isinstance(base, nn.Linear | Conv1D) or transposed != bool(
        getattr(layer, "fan_in_fan_out", False)
    ):
        raise ValueError(
            f"the adapter of a {type(base).__name__} with fan_in_fan_out="
            f"{getattr(layer, 'fan_in_fan_out', None)} cannot be masked; "
            "LoRA of a Linear or of the Conv1D of transformers with fan_in_fan_out=True can"
        )
    if variants := list(layer.lora_variant.values()):  # DoRA, aLoRA, Arrow, ...
        kind = type(variants[0]).__name__.removesuffix("LinearVariant")
        raise ValueError(f"an adapter of the variant {kind} cannot be masked; plain LoRA can")


def _masked_delta(layer: Any, adapter: str) -> Tensor:
    """``s M * (B A)`` of one adapter, of the weight's shape; what peft merges."""
    delta = layer._unmasked_delta(adapter)
    mask = layer.get_base_layer()._buffers[mask_name(_weight_name(layer))]
    return delta * mask.to(delta.device)


class _Plus(nn.Module):
    """A parametrization: a parameter plus a tensor."""

    def __init__(self, delta: Tensor) -> None:
        super().__init__()
        self.delta = delta

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.delta


def _masked_param_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The base layer, with the masked adapters added to its parameter for this pass."""
    if layer.disable_adapters and layer.merged:
        layer.unmerge()
    active = [adapter for adapter in layer.active_adapters if adapter in layer.lora_A]
    if layer.disable_adapters or layer.merged or not active:
        return layer.base_layer(x, *args, **kwargs)
    base, name = layer.get_base_layer(), layer.parameter_name
    delta = sum(layer.get_delta_weight(adapter) for adapter in active)
    requires_grad = base._parameters[name].requires_grad
    parametrize.register_parametrization(base, name, _Plus(delta), unsafe=True)
    base.parametrizations[name].original.requires_grad_(requires_grad)
    try:
        with parametrize.cached():
            return layer.base_layer(x, *args, **kwargs)
    finally:
        parametrize.remove_parametrizations(base, name, leave_parametrized=False)


def _masked_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The base layer and the masked adapters."""
    if layer.disable_adapters and layer.merged:
        layer.unmerge()
    result = layer.base_layer(x, *args, **kwargs)
    if layer.disable_adapters or layer.merged:
        return result
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            delta = layer.get_delta_weight(adapter)
            delta = delta.T if layer.fan_in_fan_out else delta
            if (bias := layer.lora_B[adapter].bias) is not None:
                bias = layer.scaling[adapter] * bias
            inputs = layer.lora_dropout[adapter](x.to(delta.dtype))
            result = result + F.linear(inputs, delta.to(inputs.dtype), bias).to(result.dtype)
    return result
