"""From a sparsity to a number of weights, and the number of weights of a mask."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from sparse_lib.masks import shards
from sparse_lib.rules import Rules, rules_of


def num_nonzero(sparsity: float, numel: int, *, compat: str | Rules | None = None) -> int:
    """Number of weights that stay at a sparsity.

    Args:
        sparsity: Fraction of zeros, in [0, 1].
        numel: Number of weights, at least 0.
        compat: Whose rules count. None is ``floor((1 - sparsity) * numel + 1/2)`` in exact
            arithmetic, at least 1 unless the sparsity is 1 or there are no weights;
            ``"cstorch-2.10"`` is that library's float32 count, cut to an integer.

    >>> num_nonzero(0.9, 1000), num_nonzero(0.95, 10), num_nonzero(0.99, 10), num_nonzero(1, 10)
    (100, 1, 1, 0)
    >>> num_nonzero(0.8, 10, compat="cstorch-2.10")
    1
    """
    return rules_of(compat).count(sparsity, numel)


def num_true(mask: Tensor) -> int:
    """Number of True elements of a bool tensor; a collective where it is sharded."""
    if shards.is_sharded(mask):
        return shards.total(num_true(shards.local(mask)), shards.group_of(mask))
    # NumPy counts booleans some ten times faster than a torch reduction on the CPU.
    if mask.device.type == "cpu":
        return int(np.count_nonzero(mask.numpy()))
    return int(mask.count_nonzero())


def num_true_later(mask: Tensor) -> int | Tensor:
    """`num_true`, or a scalar tensor where the host would wait for it; for `settled`."""
    return mask.count_nonzero() if mask.is_cuda and not shards.is_sharded(mask) else num_true(mask)


def settled(counts: Iterable[int | Tensor]) -> list[int]:
    """Counts by `num_true_later` as integers; the host waits once for all of them."""
    found = list(counts)
    if any(isinstance(count, Tensor) for count in found):
        numbers: list[int] = torch.stack([torch.as_tensor(count) for count in found]).tolist()
        return numbers
    return [int(count) for count in found]
