"""Layers that hold their unmasked weights alone.

Under a mask that changes no more, masked weights, their gradients and their optimizer states need
no memory, and an optimizer needs no time for them. State dicts keep their dense form.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparse_lib.checks import check_finite
from sparse_lib.core.guard import guards, mask_name
from sparse_lib.execution import kernels, products
from sparse_lib.execution.layers import is_watched, skipping_mixin
from sparse_lib.execution.products import Product, Rows, SkipProduct, Structures, Windows
from sparse_lib.layers import original
from sparse_lib.masks.counts import sparsity

_WEIGHT, _MASK = "weight", mask_name("weight")


class PackedLayer(nn.Module):
    """A Linear, Conv2d or transformers' Conv1D that holds its unmasked weights alone; see `pack`.

    It is the layer itself, of another class meanwhile. Its state dict has ``weight`` and
    ``weight_mask`` in the form that the masked layer's had. ``values`` are the unmasked weights by
    rows of the dense weight, `[num_nonzero]`.
    """

    is_packed = True
    requires_dense = True  # algorithms mask none of these parameters

    dense_class: type[nn.Module]
    values: nn.Parameter
    bias: nn.Parameter | None
    geometry: Rows | Windows
    weight_shape: torch.Size
    _bits: np.ndarray
    _structures: Structures | None

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {**self.__dict__, "_structures": None}  # copies build their own
        return _empty_layer, (self.dense_class,), state

    def extra_repr(self) -> str:
        """The layer's own description, and how many of its weights are left."""
        kept, total = self.values.numel(), self.weight_shape.numel()
        return f"{super().extra_repr()}, {kept} of {total} weights"

    @property
    def mask(self) -> Tensor:
        """The bool mask, of the dense weight's shape; made at each call."""
        bits = np.unpackbits(self._bits, count=self.weight_shape.numel())
        return torch.from_numpy(bits).bool().view(self.weight_shape).to(self.values.device)

    @property
    def weight(self) -> Tensor:
        """The dense weight, made at each call; its gradients reach `values`."""
        mask, values = self.mask, self.values
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As of a module; AttributeError for the weight, which is made of `values`."""
        if name == _WEIGHT:
            raise AttributeError("a packed layer has no weight to set; load a state dict")
        super().register_parameter(name, param)

    def reset_parameters(self) -> None:
        """Not there: AttributeError."""
        raise AttributeError("a packed layer has no reset_parameters(); call it before pack")

    # `torch.compiler.disable`, but the compiler is imported at the first call.
    @torch._disable_dynamo
    def forward(self, input: Tensor) -> Tensor:
        """The layer's output; torch multiplies a dense weight where the kernels cannot run."""
        return self.geometry.batched(input, self._multiply)

    def _multiply(self, source: Tensor) -> Tensor:
        values, bias, geometry = self.values, self.bias, self.geometry
        if not self._can_skip(source):
            return geometry.dense(source, self.weight, bias)
        product = Product(geometry, self.structures(), products.product_dtype(values))
        return SkipProduct.apply(source, values, bias, product)

    def _can_skip(self, source: Tensor) -> bool:
        return (
            self.values.numel() > 0
            and kernels.unavailable() is None
            and not is_watched()
            and products.reason_for_dense(source, self.values, self.bias) is None
            and self.geometry.fits(source, torch.empty(self.weight_shape, device="meta"))
        )

    def structures(self) -> Structures:
        """The mask as the kernels read it; built at the first call."""
        if self._structures is None:
            mask = self.mask.cpu().flatten(1).contiguous()
            made = Structures.build(mask, inputs_first=self.geometry.inputs_first, fingerprint=0)
            self._structures = made.packed(mask)
        return self._structures

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # In the order in which the layer's own state dict has them.
        own: dict[str, Tensor] = {}
        super()._save_to_state_dict(own, prefix, keep_vars)
        weight = self.weight if keep_vars else self.weight.detach()
        own |= {prefix + _WEIGHT: weight, prefix + _MASK: self.mask}
        names = [prefix + name for name in (_WEIGHT, "bias", *self._buffers)]
        destination.update({name: own[name] for name in names if name in own})

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        missing, unexpected, errors = lists
        key, own, mask = prefix + _WEIGHT, prefix + "values", self.mask
        missing += [name for name in (key, prefix + _MASK) if name not in state]
        unexpected += [own] * (strict and own in state)
        given = {**state, own: self.values.detach()}
        weight, saved = given.pop(key, mask), given.pop(prefix + _MASK, mask)
        if not torch.equal((saved != 0).to(mask.device), mask):
            errors.append(f"{prefix + _MASK!r} is not the mask that {key!r} was packed with")
        elif weight.shape != mask.shape:
            shapes = f"{tuple(weight.shape)}, and must have {tuple(mask.shape)}"
            errors.append(f"{key!r} has the shape {shapes}")
        elif bool((weight.to(mask.device)[~mask] != 0).any()):
            errors.append(f"{key!r} has weights where it is packed without any")
        elif key in state:
            given[own] = weight.detach().to(mask.device)[mask]
        super()._load_from_state_dict(given, prefix, metadata, strict, missing, unexpected, errors)


@functools.cache
def _class_of(kind: Any) -> type[nn.Module]:
    members = {"dense_class": kind, "__module__": __name__}
    return type(kind.__name__, (PackedLayer, kind), members)


def _empty_layer(kind: type[nn.Module]) -> nn.Module:
    """A packed layer without contents, for pickle, which would not find its class."""
    return object.__new__(_class_of(kind))  # type: ignore[arg-type]


def pack(model: nn.Module, *, least_sparsity: float = 0.5) -> list[str]:
    """Reduce masked layers to their unmasked weights, in place.

    For training under masks that change no more: weights, gradients and optimizer states of a
    layer that is 90% sparse take about a tenth, and with the positions that the kernels read about
    a quarter, of what they took. The layers skip their masked work as those of
    `sparse_lib.device.compile` do, with the same bits; where the kernels cannot run, they multiply
    a dense weight made for the occasion. Algorithms let go of the packed weights. The optimizer is
    made afterwards, from the packed model's parameters.

    Args:
        model: Any module that holds masked Linear, Conv2d or transformers' Conv1D layers. Tied and
            parametrized weights, grouped convolutions and sharded ones stay as they are.
        least_sparsity: Layers with a lower sparsity stay masked, in [0, 1]. Below about 0.5
            positions take more memory than is saved.

    Returns:
        Full names of the weights that were packed, in model order.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: ``model`` is itself a layer or a compiled twin, or is wrapped for several
            processes; the least sparsity is not in [0, 1]; a weight has hooks of its own, no data,
            or an optimizer that an algorithm was applied to.
    """
    _check(model)
    if not 0 <= check_finite(least_sparsity, "least_sparsity") <= 1:
        raise ValueError(f"least_sparsity must be in [0, 1], got {least_sparsity!r}")
    found = list(_packable(model, least_sparsity))
    for name, layer, _ in found:
        _check_layer(name, layer)
    for _, layer, geometry in found:
        if (guard := guards(layer).get(_WEIGHT)) is not None:
            if guard.driver is not None:
                guard.driver.detach(layer)
            guard.remove()
        own, weight, mask = layer._parameters, layer._parameters[_WEIGHT], layer._buffers[_MASK]
        assert weight is not None and mask is not None
        kept = mask != 0
        values = nn.Parameter(weight.detach()[kept], requires_grad=weight.requires_grad)
        own[_WEIGHT] = layer._buffers[_MASK] = None
        own |= {"values": values, "bias": own.pop("bias")}
        # No buffer: an average of buffers, or a cast of them, is no mask.
        bits = np.packbits(kept.flatten().cpu().numpy())
        layer.__dict__.update(geometry=geometry, weight_shape=weight.shape, _bits=bits)
        layer.__dict__["_structures"] = None
        layer.__class__ = _class_of(type(layer))  # type: ignore[arg-type]
        values.grad = None if weight.grad is None else weight.grad[kept]
    return [name for name, *_ in found]


def _check(model: Any) -> None:
    """Raise TypeError or ValueError where layers cannot be exchanged."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"pack takes a torch.nn.Module, not {type(model).__name__}")
    if skipping_mixin(type(model)) or isinstance(model, PackedLayer):
        raise ValueError("pack exchanges layers; give it the module that holds this one")
    if original(model) is not model:
        raise ValueError("pack takes the model, not what sparse_lib.device.compile made of it")
    if any(type(module).__name__ == "DistributedDataParallel" for module in model.modules()):
        raise ValueError("pack comes before DistributedDataParallel, which keeps its parameters")
    if torch.is_inference_mode_enabled():
        raise ValueError("pack makes parameters, which inference_mode would make untrainable")


def _packable(
    model: nn.Module, least_sparsity: float
) -> Iterator[tuple[str, nn.Module, Rows | Windows]]:
    """Weight name, layer and geometry of the layers that can be packed."""
    named = list(model.named_modules(remove_duplicate=False))
    uses = Counter(id(parameter) for _, layer in named for parameter in layer._parameters.values())
    for path, layer in named:
        mixin = skipping_mixin(type(layer))
        is_plain = set(layer._parameters) == {_WEIGHT, "bias"} and not layer._modules
        if not (mixin and is_plain) or "forward" in layer.__dict__:  # it would not know of values
            continue
        weight, mask = layer._parameters[_WEIGHT], layer._buffers.get(_MASK)
        if type(weight) is not nn.Parameter or mask is None or uses[id(weight)] > 1:
            continue
        geometry = mixin[0].geometry(layer)
        fits = mask.shape == weight.shape and mask.numel() <= products.MOST_WEIGHTS
        if isinstance(geometry, str) or not fits:
            continue
        if weight.is_meta:
            raise ValueError(f"{path}.{_WEIGHT} has no data, it is on the meta device")
        if sparsity(mask) >= least_sparsity:
            yield f"{path}.{_WEIGHT}", layer, geometry


def _check_layer(name: str, layer: nn.Module) -> None:
    """Raise ValueError where a training would go on without a layer's packed weight."""
    weight, guard = layer.get_parameter(_WEIGHT), guards(layer).get(_WEIGHT)
    hooks = {**(weight._backward_hooks or {}), **(weight._post_accumulate_grad_hooks or {})}
    # Those of a guard and of algorithms go with them.
    if not all(getattr(h, "__module__", "").startswith("sparse_lib.") for h in hooks.values()):
        raise ValueError(f"{name!r} has hooks on its gradient, which would not see the packed one")
    if guard is not None and guard.driver is not None and guard.driver.drives(weight):
        raise ValueError(
            f"an optimizer trains {name!r} and would go on with the dense weight; pack comes "
            "before the optimizer"
        )
