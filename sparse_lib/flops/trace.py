"""Runs a model on meta tensors: shapes without memory, and whose weight an operand is."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparse_lib.layers import LayerDescription, original

# The rows of an embedding are values of its input, not a weight.
_LOOKUPS = frozenset({"aten::embedding", "aten::_embedding_bag"})
# Functions that make something else than zeros of a weight's zeros.
_FILLING = frozenset(
    f"aten::{name}"
    for name in (
        "_softmax _log_softmax _safe_softmax exp exp2 sigmoid log_sigmoid_forward softplus "
        "hardsigmoid cos cosh acos erfc cumsum logcumsumexp _fft_r2c _fft_c2c linalg_matrix_exp "
        "linalg_inv_ex linalg_qr linalg_householder_product"
    ).split()
)
# Functions that add, which fills zeros unless all that is added is of the same weights.
_SHIFTING = frozenset(f"aten::{name}" for name in "add sub rsub lerp addcmul addcdiv".split())

Shares = tuple[tuple[str, float], ...]
"""Names of weights, and the share of each in a tensor."""


class WeightIndex:
    """Finds the weights behind an operand: views, casts, masks, and whatever is computed from them.

    What an operator makes of a weight and no activation belongs to that weight, as under weight
    norm, spectral norm and weight standardisation, or of its chosen experts; so does what an
    activation scales along some of its dimensions, as a style's. What joins several (``cat``)
    belongs to each by its size. Products of two weights are activations, and functions that fill
    a weight's zeros (softmax, 1 - w) make a constant. Weights are on the meta device, by name.
    """

    def __init__(self, weights: Mapping[str, Tensor], inputs: Any) -> None:
        self._shares: dict[int, Shares] = {
            storage_key(weights[name]): ((name, 1.0),) for name in reversed(list(weights))
        }
        self._activations = {storage_key(tensor) for tensor in _tensors(inputs)}
        # Held, since a new tensor must not take the address of a dead one; they hold no memory.
        self._held: list[Tensor] = []

    def shares(self, tensor: Any) -> Shares:
        """The weights behind a tensor; none behind activations and constants."""
        return self._shares.get(storage_key(tensor), ()) if torch.is_tensor(tensor) else ()

    def find(self, args: tuple[Any, ...]) -> Shares:
        """Weights behind a product: of its last operand that has any, which layers multiply by."""
        return next((found for arg in reversed(args) if (found := self.shares(arg))), ())

    def follow(self, name: str, args: tuple[Any, ...], out: Any, *, is_product: bool) -> None:
        """Remember what the result of an operator is made of."""
        made, inputs = _tensors(out), _tensors(args)
        keys = [storage_key(tensor) for tensor in inputs]
        active = any(key in self._activations for key in keys if key not in self._shares)
        is_shifted = name in _SHIFTING and (
            any(isinstance(arg, int | float) and arg for arg in args[:2])
            or len({self.shares(tensor) for tensor in inputs}) > 1
        )
        if (name in _FILLING or is_shifted) and not active:
            return
        floats = [
            t for t, k in zip(inputs, keys) if k in self._activations and t.is_floating_point()
        ]
        if name == "aten::mul":
            floats = [t for t in floats if not any(_scales(t, w) for w in inputs if self.shares(w))]
        for tensor in made:
            key = storage_key(tensor)
            if key in self._shares or key in self._activations:
                continue
            self._held.append(tensor)
            found = () if floats or name in _LOOKUPS else self._made_of(inputs, tensor)
            if found and not (is_product and tensor.dim() > 1):
                self._shares[key] = found
            elif active or found or name in _LOOKUPS:
                self._activations.add(key)

    def _made_of(self, inputs: list[Tensor], tensor: Tensor) -> Shares:
        owned = [(t, found) for t in inputs if (found := self.shares(t))]
        whole = next((found for t, found in owned if t.shape == tensor.shape), ())
        if whole or not owned:
            return whole
        total = sum(t.numel() for t, _ in owned)
        parts: dict[str, float] = {}
        for t, found in owned:
            for name, share in found:
                parts[name] = parts.get(name, 0.0) + share * t.numel() / max(total, 1)
        return tuple(parts.items())


def _scales(factor: Tensor, weight: Tensor) -> bool:
    """Whether one factor is for several elements of a weight, zeros of which stay."""
    lined_up = (1,) * (weight.dim() - factor.dim()) + factor.shape
    return any(mine == 1 < theirs for mine, theirs in zip(lined_up, weight.shape))


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def storage_key(tensor: Tensor) -> int:
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
        owner = original(module)
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
) -> Iterator[tuple[Callable[[tuple[Any, ...], dict[str, Any]], Any], dict[str, Tensor]]]:
    """Gives a function that runs the model on meta copies, in evaluation mode, and the weights."""
    replaced: dict[int, Tensor] = {}

    def swap(tensor: Tensor) -> Tensor:
        return replaced.setdefault(id(tensor), to_meta(tensor))

    # By one name each: functional_call would give a module used twice its meta tensors for good.
    state = {
        f"{path}.{name}".lstrip("."): swap(tensor)
        for path, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }
    weights = {
        d.weight_name: state[d.weight_name if d.weight_name in state else f"{d.name}.values"]
        for d in descriptions
        if d.is_matmul
    }
    takes = inspect.signature(model.forward).parameters
    extra = {"use_cache": False} if "use_cache" in takes else {}

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return torch.func.functional_call(model, state, args, extra | kwargs, tie_weights=False)

    # torch's fused encoder layer is one operator of unknown FLOPs; without it each product runs.
    # transformers' experts loop over what the router chose, or sort by it: without values, each
    # token takes copies of its experts.
    with ExitStack() as stack:
        fast_path = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
            module.training = False
            config = getattr(module, "config", None)
            if (own := getattr(config, "_experts_implementation", None)) is not None or isinstance(
                getattr(module, "is_transposed", None), bool
            ):
                stack.callback(setattr, config, "_experts_implementation", own)
                config._experts_implementation = "batched_mm"  # type: ignore[union-attr]
        yield call, weights


def without_memory(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device, whose parameters keep ``requires_dense``."""
    memo: dict[int, Any] = {id(buffer): to_meta(buffer) for buffer in model.buffers()}
    for own in model.parameters():
        parameter = nn.Parameter(to_meta(own), requires_grad=own.requires_grad)
        parameter.requires_dense = getattr(own, "requires_dense", False)  # type: ignore[attr-defined]
        memo[id(own)] = parameter
    return copy.deepcopy(model, memo)


def to_meta(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=False
    )
