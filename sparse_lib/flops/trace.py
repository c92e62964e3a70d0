"""Runs a model on meta tensors: shapes without memory, and whose weight an operand is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sparse_lib.layers import LayerDescription, describe

# Outputs of these have the values of a weight: a masked, cast or copied weight is still the weight.
_WEIGHT_PRESERVING = frozenset(
    {
        "aten::mul",
        "aten::where",
        "aten::masked_fill",
        "aten::_to_copy",
        "aten::clone",
        "aten::detach",
        "aten::copy",
        "aten::masked_scatter",
    }
)
_UNARY = frozenset(
    f"aten::{name}"
    for name in (
        "gelu",
        "relu",
        "hardtanh",
        "silu",
        "tanh",
        "pow",
        "_softmax",
        "_safe_softmax",
        "tril",
        "neg",
    )
)
_BINARY = frozenset({"aten::add", "aten::mul", "aten::sub"})


class WeightIndex:
    """Finds which weight an operand is, through views, casts, copies and masks.

    Storages are compared, so a transposed view is its weight. The latest masked, cast or copied
    form of each weight is kept alive: a new tensor must not take the address of a dead one.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._names = {storage_key(weights[name]): name for name in reversed(list(weights))}
        self._aliases: dict[tuple[str, str], torch.Tensor] = {}

    def name_of(self, tensor: Any) -> str | None:
        """Name of the weight behind a tensor, or None."""
        return self._names.get(storage_key(tensor)) if isinstance(tensor, torch.Tensor) else None

    def find(self, args: tuple[Any, ...]) -> str | None:
        """Name of the first operand that is a weight, or None."""
        return next((name for arg in args if (name := self.name_of(arg)) is not None), None)

    def follow(self, operator: str, args: tuple[Any, ...], out: Any) -> None:
        """Remembers ``out`` as the weight it was made from, where the operator keeps that."""
        if operator not in _WEIGHT_PRESERVING or not isinstance(out, torch.Tensor):
            return
        # The unmasked weights of a packed layer are scattered to a dense weight's places.
        scatters = operator == "aten::masked_scatter"
        for arg in args[2:] if scatters else args:
            name = self.name_of(arg)
            alike = scatters or (name is not None and arg.shape == out.shape)
            if name is None or not alike or storage_key(arg) == storage_key(out):
                continue
            previous = self._aliases.get((name, operator))
            if previous is not None:
                self._names.pop(storage_key(previous), None)
            self._aliases[name, operator] = out
            self._names[storage_key(out)] = name
            return


def keeps_weight(operator: str) -> bool:
    """True if the result of the operator may still be the weight that went in."""
    return operator in _WEIGHT_PRESERVING


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage while it lives, on any device (meta too)."""
    return tensor.untyped_storage()._cdata


@contextmanager
def module_stack(model: nn.Module) -> Iterator[list[str]]:
    """Keeps the path of the running module on top of a list.

    The twins that ``device.compile`` makes of the model's modules go by their originals' names.
    """
    names = {id(module): name for name, module in model.named_modules()}
    stack = [""]

    def enter(module: nn.Module, _: Any) -> None:
        owner = module.__dict__.get("_original", module)
        stack.append(names.get(id(module), names.get(id(owner), stack[-1])))

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        stack.pop()

    hooks = torch.nn.modules.module
    handles = (
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def on_meta(
    model: nn.Module, descriptions: list[LayerDescription]
) -> Iterator[tuple[Callable[[tuple[Any, ...], dict[str, Any]], Any], WeightIndex]]:
    """Gives a function that runs the model on meta copies, in evaluation mode."""
    replaced: dict[int, torch.Tensor] = {}

    def swap(tensor: torch.Tensor) -> torch.Tensor:
        return replaced.setdefault(id(tensor), to_meta(tensor))

    # By one name each: functional_call would give a module used twice its meta tensors for good.
    state = {
        f"{path}.{name}".lstrip("."): swap(tensor)
        for path, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }
    weights = {d.weight_name: state[d.weight_name] for d in descriptions if d.is_matmul}
    extra = {"use_cache": False} if "use_cache" in _arguments(model) else {}

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return torch.func.functional_call(model, state, args, extra | kwargs, tie_weights=False)

    modes = [(module, module.training) for module in model.modules()]
    # torch's fused encoder layer is one operator of unknown FLOPs; without it each product runs.
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        for module, _ in modes:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)
        yield call, WeightIndex(weights)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, training in modes:
            module.training = training


def all_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return model.named_parameters(remove_duplicate=False)


def _arguments(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters


def to_meta(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=False
    )


def example(
    model: nn.Module,
    batch_size: int,
    sequence_length: int | None,
    image_size: int | tuple[int, int] | None,
) -> torch.Tensor:
    """A meta tensor of the shape and type that the model takes."""
    if sequence_length is not None and image_size is not None:
        raise ValueError("count takes sequence_length or image_size, not both.")
    sides = (image_size, image_size) if isinstance(image_size, int) else (image_size or ())
    for key, size in [("batch_size", batch_size), ("sequence_length", sequence_length)]:
        if size is not None and size < 1:
            raise ValueError(f"{key} is {size}; it must be at least 1.")
    layers = describe(model)
    matmuls = [layer for layer in layers if layer.is_matmul]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if sides:
        convolutions = [layer for layer in matmuls if len(layer.weight_shape) == 2 + len(sides)]
        if convolutions:
            channels = convolutions[0].weight_shape[1] * convolutions[0].groups
        elif matmuls and matmuls[0].fan_in % math.prod(sides) == 0:
            channels = matmuls[0].fan_in // math.prod(sides)  # pixels, flattened
        else:
            raise ValueError(f"count found no layer that takes images of {image_size} pixels.")
        return torch.empty(batch_size, channels, *sides, dtype=dtype, device="meta")
    if any(layer.kind == "embedding" for layer in layers) and sequence_length is not None:
        return torch.empty(batch_size, sequence_length, dtype=torch.long, device="meta")
    if not matmuls:
        raise ValueError("count found no layer with weights to multiply by.")
    rows = (batch_size,) if sequence_length is None else (batch_size, sequence_length)
    return torch.empty(*rows, matmuls[0].fan_in, dtype=dtype, device="meta")


def shape_only(name: str, args: tuple[Any, ...]) -> Any:
    """Result of a frequent operator by shape alone, else None: torch's meta kernels are slow."""
    if name == "aten::addmm":
        rows, columns = args[1].shape[0], args[2].shape[1]
        return torch.empty(rows, columns, dtype=args[1].dtype, device="meta")
    if name in ("aten::native_layer_norm", "aten::native_batch_norm"):
        return to_meta(args[0]), args[0], args[0]
    if name in _UNARY and args[0].is_floating_point():
        return to_meta(args[0])
    if name in _BINARY and args[0].is_floating_point():
        other = args[1]
        if not isinstance(other, torch.Tensor) or (
            other.shape == args[0].shape and other.dtype == args[0].dtype
        ):
            return to_meta(args[0])
    return None
