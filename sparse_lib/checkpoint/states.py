"""States of this library and of its relatives as dense weights and masks; masks as bits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_lib.checkpoint.names import AVERAGED, State, namer_of_state


def split_state(state: Mapping[str, Any]) -> tuple[State, dict[str, Tensor]]:
    """Dense weights and masks from a checkpoint of this library or of its relatives.

    Understood, also mixed: ``<name>_mask`` buffers (this library, cerebras-pytorch 2.2 and
    later, which nest the state under ``"model"``); masks in the optimizer's state, at
    ``optimizer.sparsity.state[name].mask`` (2.0 and 2.1); NaN for absent weights (sideband);
    ``<name>_orig`` with ``<name>_mask`` (``torch.nn.utils.prune``); bitmasks of
    `export_bitmask` and of compressed-tensors (``sparse-bitmask``, ``sparse-24-bitmask``).
    Prefixes of wrappers are removed, DDP's ``module.`` where all names have it; the argument is
    not changed.

    Returns:
        Full name to dense tensor with zeros where masked, and full name to boolean mask.

    Raises:
        TypeError: If the checkpoint is no mapping.
        ValueError: If a name is no string or comes twice, a mask has no weight, another shape or
            values besides 0 and 1, a bitmask does not fit, or a tensor is not strided.
    """
    return split_known_state(state, ())


def split_known_state(
    state: Mapping[str, Any], known: Collection[str], maskable: Collection[str] | None = None
) -> tuple[State, dict[str, Tensor]]:
    """As `split_state`, for a model with the ``known`` names.

    NaN means absent in the ``maskable`` ones, the parameters; a buffer with NaN has NaN.
    """
    saved, of_optimizer = _tensors_of(state), _masks_of_optimizer(state)
    plain = namer_of_state({*saved, *of_optimizer} - AVERAGED, known)
    tensors, masks = _renamed(saved, plain), _renamed(of_optimizer, plain)
    weights = _unpacked(tensors, masks)
    for name, tensor in tensors.items():
        owner = name.removesuffix("_mask")
        beside = owner in tensors and tensor.dtype == torch.bool
        if owner != name and (beside or f"{owner}_orig" in tensors):
            masks[owner] = tensor
        elif name.endswith("_orig") and f"{name.removesuffix('_orig')}_mask" in tensors:
            if (owner := name.removesuffix("_orig")) in tensors:
                raise ValueError(f"the checkpoint has both {owner!r} and {name!r}")
            weights[owner] = tensor.detach().clone()
        elif tensor.layout != torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout)
            raise ValueError(f"{name!r} is {kind}; a checkpoint holds strided tensors")
        else:
            weights[name] = tensor.detach().clone()
            is_real = tensor.is_floating_point()
            may_lack = (is_real or tensor.is_complex()) and (maskable is None or name in maskable)
            if may_lack and bool(tensor.isnan().any()):
                masks.setdefault(name, ~tensor.isnan())
    for name, mask in masks.items():
        if name not in weights or weights[name].shape != mask.shape:
            raise ValueError(f"the mask of {name!r} has no weight of its shape {tuple(mask.shape)}")
        masks[name] = as_mask(name, mask)
        clear(weights[name], ~masks[name])
    return weights, masks


def _unpacked(tensors: State, masks: dict[str, Tensor]) -> State:
    """The weights whose masks are bits, taken out of the tensors; their masks are added."""
    weights: State = {}
    for key in [key for key in tensors if key.endswith(".bitmask")]:
        name, bits = key.removesuffix(".bitmask"), tensors.pop(key)
        owner = name
        if bits.dim() > 1 and not name.endswith(".weight"):
            owner = f"{name}.weight"  # compressed-tensors names the module
        values, shape = (tensors.pop(f"{name}.{part}", None) for part in ("compressed", "shape"))
        tensors.pop(f"{name}.row_offsets", None)
        dense = tensors.pop(owner, None)
        if (dense is None) == (values is None) or (values is None) != (shape is None):
            raise ValueError(
                f"{key!r} needs either {owner!r} or both {name}.compressed and {name}.shape"
            )
        if values is None or shape is None:
            assert dense is not None
            masks[owner] = from_bits(owner, bits, list(dense.shape))
            weights[owner] = dense.detach().clone()
            continue
        if shape.is_floating_point() or shape.dtype == torch.bool or shape.is_complex():
            raise ValueError(f"'{name}.shape' must hold integers, not {shape.dtype}")
        masks[owner] = from_bits(owner, bits, shape.flatten().tolist())
        weights[owner] = from_values(owner, values, masks[owner])
    return weights


def _tensors_of(state: Any) -> State:
    """The tensors of a checkpoint, or of its ``"model"``, by name."""
    inner = state.get("model", state) if isinstance(state, Mapping) else None
    if torch.is_tensor(inner):
        inner = state  # a parameter that is called model
    if not isinstance(inner, Mapping):
        raise TypeError(
            f"a checkpoint must be a mapping of names to tensors, not {state!r:.80}; read a file "
            "by torch.load or sparse_lib.checkpoint.read_safetensors first"
        )
    for name in inner:
        if not isinstance(name, str):
            raise ValueError(f"a checkpoint maps names to tensors; its key {name!r:.80} is no name")
    found = {name: tensor for name, tensor in inner.items() if torch.is_tensor(tensor)}
    if inner and not found:
        raise ValueError(f"the checkpoint has no tensor at its top, only {list(inner)!r:.80}")
    return found


def _renamed(tensors: State, plain: Callable[[str], str]) -> State:
    names = {name: plain(name) for name in tensors}
    twice, times = Counter(names.values()).most_common(1)[0] if names else ("", 1)
    if times > 1:
        raise ValueError(f"the checkpoint has {twice!r} more than once, with and without a prefix")
    return {names[name]: tensor for name, tensor in tensors.items()}


def as_mask(name: str, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"the mask of {name!r} has values besides 0 and 1")
    return mask.to(torch.bool)


def _masks_of_optimizer(state: Mapping[str, Any]) -> State:
    """Masks at ``optimizer.sparsity.state[name].mask``, by name; empty if there is no such key."""
    optimizer = state.get("optimizer")
    sparsity = optimizer.get("sparsity") if isinstance(optimizer, Mapping) else None
    entries = sparsity.get("state", {}) if isinstance(sparsity, Mapping) else {}
    if not isinstance(entries, Mapping):
        raise ValueError(f"'optimizer.sparsity.state' must be a mapping, not {entries!r:.80}")
    masks = {}
    for name, entry in entries.items():
        if isinstance(entry, Mapping) and "mask" in entry:
            if not isinstance(name, str) or not torch.is_tensor(entry["mask"]):
                raise ValueError(f"'optimizer.sparsity.state' has no mask tensor for {name!r:.80}")
            masks[name] = entry["mask"]
    return masks


def to_bits(mask: Tensor) -> Tensor:
    """A mask in row-major order, eight entries a byte from the lowest bit; (ceil(n / 8),) uint8."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1), bitorder="little"))


def from_bits(name: str, bits: Tensor, shape: list[int]) -> Tensor:
    """The mask of bits as `to_bits` has them, or compressed-tensors: (rows, bytes of a row).

    ``name`` is the weight's, for messages; ValueError if these are no bits for that shape.
    """
    if not all(size >= 0 for size in shape) or math.prod(shape) >= 2**63:
        raise ValueError(f"{name!r} must have a shape of sizes, not {shape!r:.80}")
    by_row = bits.dim() > 1
    rows, columns = (math.prod(shape[:-1]), shape[-1]) if by_row else (1, math.prod(shape))
    wanted = rows * -(-columns // 8)
    if bits.dtype != torch.uint8 or bits.numel() != wanted:
        raise ValueError(
            f"the bitmask of {name!r} must have {wanted} bytes for the shape {shape}, not "
            f"{bits.numel()} of {bits.dtype}"
        )
    if not rows * columns:
        return torch.zeros(shape, dtype=torch.bool)
    flat = bits.cpu().reshape(rows, -1).numpy()
    found = np.unpackbits(flat, axis=1, count=columns, bitorder="little").view(np.bool_)
    return torch.from_numpy(found).reshape(shape)


def from_values(name: str, values: Tensor, mask: Tensor) -> Tensor:
    """The dense weight of the values at a mask, zero elsewhere; ValueError if counts differ."""
    count = int(mask.count_nonzero())
    if values.numel() != count or values.layout != torch.strided:
        raise ValueError(f"{name!r} has {values.numel()} values, and its mask {count}")
    weight = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    as_bytes(weight)[mask.to(weight.device)] = as_bytes(values.detach().reshape(-1))
    return weight


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor, or where an element is one byte its view as bytes, which all functions take."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def clear(tensor: Tensor, absent: Tensor) -> None:
    """Set elements to zero, in place."""
    as_bytes(tensor.detach()).masked_fill_(absent.to(tensor.device), 0)
