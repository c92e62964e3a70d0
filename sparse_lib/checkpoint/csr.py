"""Masked weights as CSR matrices, and back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

CSR_PARTS = ("crow_indices", "col_indices", "values")


def from_csr(
    name: str, crow: Tensor, column: Tensor, values: Tensor, shape: Any
) -> tuple[Tensor, Tensor]:
    """Dense weight and mask, both of a shape, of the arrays of a CSR matrix.

    Args:
        name: Full name of the weight, for messages.
        crow: Where each row begins, and the end; (rows + 1,), int32 or int64.
        column: Columns, ascending within a row; (weights,), int32 or int64.
        values: Present weights; (weights,).
        shape: Of the dense weight; all but its first dimension are the columns.

    Raises:
        ValueError: If the arrays are no CSR matrix of that shape.
    """
    is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not is_shape or math.prod(shape) >= 2**63:
        raise ValueError(f"{name!r} must have a shape of sizes, not {shape!r:.80}")
    rows = shape[0] if len(shape) > 1 else 1
    columns = math.prod(shape[1:] if len(shape) > 1 else shape)
    for part, array in zip(CSR_PARTS, (crow, column, values), strict=True):
        if array.dim() != 1 or array.layout != torch.strided:
            raise ValueError(f"'{name}.{part}' must have one dimension, not {array.dim()}")
        if part != "values" and array.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"'{name}.{part}' must be int32 or int64, not {array.dtype}")
    if crow.numel() != rows + 1 or int(crow[0]) != 0 or bool((crow.diff() < 0).any()):
        raise ValueError(
            f"'{name}.crow_indices' must be {rows + 1} ascending numbers from 0, for {rows} rows"
        )
    if not int(crow[-1]) == column.numel() == values.numel():
        raise ValueError(
            f"'{name}.crow_indices' ends at {int(crow[-1])}, but there are {column.numel()} "
            f"column indices and {values.numel()} values"
        )
    if bool(((column < 0) | (column >= columns)).any()):
        raise ValueError(f"'{name}.col_indices' must lie in [0, {columns})")
    row = torch.arange(rows, device=crow.device).repeat_interleave(crow.diff())
    if bool(((column.diff() <= 0) & (row.diff() == 0)).any()):
        raise ValueError(f"'{name}.col_indices' must ascend within each row, without repetition")
    try:
        weight = values.new_zeros(rows, columns)
        mask = torch.zeros(rows, columns, dtype=torch.bool, device=values.device)
    except RuntimeError as error:
        raise ValueError(f"{name!r} of shape {shape} does not fit in memory: {error}") from None
    places = (row, column.long())
    _as_bytes(weight)[places] = _as_bytes(values.detach())
    mask[places] = True
    return weight.reshape(shape), mask.reshape(shape)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The tensor, or where an element is one byte its view as bytes, which all functions take."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def clear(tensor: Tensor, absent: Tensor) -> None:
    """Set elements to zero, in place."""
    _as_bytes(tensor.detach()).masked_fill_(absent.to(tensor.device), 0)


def to_csr(weight: Tensor, mask: Tensor) -> Tensor:
    rows = weight.shape[0] if weight.dim() > 1 else 1
    flat, present = weight.reshape(rows, -1), mask.to(weight.device).reshape(rows, -1)
    counts = present.sum(1).cumsum(0)
    crow = torch.cat([counts.new_zeros(1), counts])
    column = present.nonzero()[:, 1]
    if flat.numel() < 2**31:  # half the memory of what torch makes by default
        crow, column = crow.to(torch.int32), column.to(torch.int32)
    return torch.sparse_csr_tensor(crow, column, flat[present], flat.shape)
