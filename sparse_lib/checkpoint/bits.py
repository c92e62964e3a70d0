"""Masks as bits, and masked weights as their values beside these bits."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


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
