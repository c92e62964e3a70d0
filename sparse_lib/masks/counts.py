"""From a sparsity to a number of weights."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_lib.checks import check_compat, check_fraction


def num_nonzero(sparsity: float, numel: int, *, compat: str | None = None) -> int:
    """Number of weights that stay at a sparsity: the only place where one becomes a count.

    The sparsity is read as the decimal it prints as, so that 90% of 1000 leaves 100 and not the 99
    of binary floating point: ``floor((1 - sparsity) * numel + 1/2)``, at least 1 unless the
    sparsity is 1 (or there are no weights).

    Args:
        sparsity: Fraction of zeros, in [0, 1].
        numel: Number of weights, at least 0.
        compat: ``"cstorch-2.10"`` for that library's float32 count, cut to an integer, without
            a floor (95% of 10 leaves 0).

    Returns:
        A count between 0 and ``numel``.

    Raises:
        ValueError: If an argument is out of range.

    >>> num_nonzero(0.9, 1000), num_nonzero(0.95, 10), num_nonzero(0.99, 10), num_nonzero(1, 10)
    (100, 1, 1, 0)
    >>> num_nonzero(0.8, 10, compat="cstorch-2.10")
    1
    """
    value = check_fraction(sparsity, "sparsity")
    if numel < 0:
        raise ValueError(f"numel must be at least 0, not {numel}")
    if check_compat(compat) is not None:
        return int((np.float32(1) - np.float32(value)) * np.float32(numel))
    count = math.floor((1 - _as_printed(sparsity)) * numel + Fraction(1, 2))
    floor = 1 if value < 1 and numel > 0 else 0
    return max(count, floor)


def num_true(mask: Tensor) -> int:
    """Number of True elements of a bool tensor."""
    # NumPy counts booleans some ten times faster than a torch reduction on the CPU.
    if mask.device.type == "cpu":
        return int(np.count_nonzero(mask.numpy()))
    return int(mask.count_nonzero())


def _as_printed(value: Any) -> Fraction:
    # A float32 prints as the decimal its user meant, which its double does not.
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value if value.dtype == torch.float64 else value.float()).numpy()[()]
    return Fraction(str(value if isinstance(value, np.floating) else float(value)))
