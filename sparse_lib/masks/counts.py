"""From a sparsity to a number of weights, and the number of weights of a mask."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
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


def sparsity(mask: Tensor) -> float:
    """Fraction of zeros of a bool mask of any shape, in [0, 1] (0 for an empty one)."""
    return 1.0 - num_true(mask) / mask.numel() if mask.numel() else 0.0


def allot(
    total: int,
    strength: Mapping[str, float],
    room: Mapping[str, int],
    size: Mapping[str, int] | None = None,
    *,
    least: int = 0,
) -> dict[str, int]:
    """Share a number out in proportion to ``strength * size``, none getting more than its room.

    What finds no room goes to the others in the same proportion; fractions are rounded by largest
    remainder, of equal ones the first by name (2 before 10). Where the strengths of all with room
    are zero, they count as equal. ``total`` is at most the sum of ``room``; sizes are 1 unless
    given. Where there is enough for all that are not full, each of them gets ``least``.

    >>> allot(10, {"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 9, "c": 9})
    {'a': 4, 'b': 3, 'c': 3}
    """
    shares = dict.fromkeys(room, 0)
    size = size or dict.fromkeys(room, 1)
    names = sorted(room, key=lambda name: [p.zfill(9) for p in re.split(r"(\d+)", name)])
    free, scale = [name for name in names if room[name] > 0], 0.0
    while free:
        if not any(strength[name] > 0 for name in free):
            strength = dict.fromkeys(free, 1.0)
        scale = total / sum(strength[name] * size[name] for name in free)
        full = [name for name in free if scale * strength[name] * size[name] >= room[name]]
        if not full:
            break
        for name in full:
            shares[name] = min(room[name], total)
            total -= shares[name]
        free = [name for name in free if name not in full]
    exact = {name: scale * strength[name] * size[name] for name in free}
    least = least if total >= len(free) else 0
    shares |= {name: min(room[name], max(least, int(share))) for name, share in exact.items()}
    spare = total - sum(shares[name] for name in free)
    by_remainder = sorted(free, key=lambda name: shares[name] - exact[name])
    while spare > 0:
        for name in by_remainder:
            if spare > 0 and shares[name] < room[name]:
                shares[name] += 1
                spare -= 1
    while spare < 0:
        largest = max(free, key=lambda name: shares[name])
        shares[largest] -= 1
        spare += 1
    return shares
