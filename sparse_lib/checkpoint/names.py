"""Names of parameters and masks: what wrappers add is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from sparse_lib.core.parameter import PARALLEL, WRAPPER
from sparse_lib.layers import is_packed

State = dict[str, Tensor]


#: What stands after a weight's name in names of its parts.
_PART = re.compile(r"(_mask|_orig|\.bitmask|\.compressed|\.shape|\.row_offsets)$")

#: What a moving average keeps beside the model.
AVERAGED = {"n_averaged"}


def masks_of(model: nn.Module) -> dict[str, Tensor]:
    """Full parameter name to boolean mask, for every masked parameter; no copies.

    Prefixes of wrappers (DDP, ``torch.compile``, activation checkpointing) are left out.
    """
    plain = namer(checked(model))
    return {
        plain(f"{path}.{name}" if path else name): mask for path, _, name, mask in masked(model)
    }


def is_sparse(model: nn.Module) -> bool:
    """Whether any parameter has a mask, or a layer is packed under one."""
    packed = any(is_packed(module) for module in checked(model).modules())
    return packed or next(masked(model), None) is not None


def namer(model: nn.Module) -> Callable[[str], str]:
    """A function that takes the wrappers of a model out of its names, and nothing of its own."""
    inside = [  # the innermost first
        f"{path}.module." if path else "module."
        for path, module in reversed(list(model.named_modules()))
        if isinstance(module, (*PARALLEL, AveragedModel))
    ]

    def plain(name: str) -> str:
        for prefix in inside:
            if name.startswith(prefix):
                name = prefix.removesuffix("module.") + name.removeprefix(prefix)
        return WRAPPER.sub("", name)

    return plain


def namer_of_state(names: Collection[str], known: Collection[str]) -> Callable[[str], str]:
    """As `namer`, from names alone, where only DDP around a whole model shows."""
    own = {_PART.sub("", name) for name in names}
    is_known = bool(known) and {WRAPPER.sub("", name) for name in own} <= {*known}
    is_wrapped = not is_known and all(name.startswith("module.") for name in names)

    def plain(name: str) -> str:
        name = WRAPPER.sub("", name)
        return name.removeprefix("module.") if is_wrapped else name

    return plain


def masked(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Yields (module path, module, parameter's name there, mask); ValueError for packed layers."""
    for path, module in checked(model).named_modules():
        if is_packed(module):
            raise ValueError(
                f"layer {path!r} is packed; load the packed model's state dict into the masked one"
            )
        for name, param in module._parameters.items():
            mask = module._buffers.get(f"{name}_mask")
            if param is None or mask is None or mask.dtype != torch.bool:
                continue
            if mask.shape == param.shape:  # else a buffer of the user's own
                yield path, module, name, mask


def checked(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch module, not {type(model).__name__}")
    return model
