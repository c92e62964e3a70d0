"""The best of some scores, exactly: what mask makers select by.

A large tensor is not sorted: a sample brackets the threshold, and only what lies between is.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from sparse_lib.masks.counts import num_true

_MANY_POOLS = 64  # above this, one sort of all pools beats a selection in each
_SMALL = 2**16  # up to this many scores, sorting them is the fastest selection


def comparable(score: Tensor) -> Tensor:
    """A float32 or float64 tensor (what NumPy and quick select know) in the same order."""
    score = score.detach()
    if score.dtype in (torch.float32, torch.float64):
        return score
    if score.is_complex():
        raise TypeError(f"scores must be real numbers, not {score.dtype}")
    wide = score.dtype in (torch.int32, torch.int64)
    return score.to(torch.float64 if wide else torch.float32)


def select(
    pools: Tensor,
    among: Tensor | None,
    keep: int | Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mask of the ``keep`` best scores in each pool, restricted to ``among``, never NaN.

    Of equal scores the lower index wins, or with a generator any.
    """
    pools = comparable(pools)
    if pools.dim() == 1:
        return select_flat(pools, among, int(keep), generator)
    rows = pools.reshape(-1, pools.shape[-1])
    inside = None if among is None else among.reshape(rows.shape)
    keeps = torch.as_tensor(keep, device=rows.device).reshape(-1).expand(rows.shape[0])
    if rows.shape[0] > _MANY_POOLS:
        return _select_rows(rows, inside, keeps, generator).reshape(pools.shape)
    chosen = torch.zeros_like(rows, dtype=torch.bool)
    for row, count in enumerate(keeps.tolist()):
        candidates = None if inside is None else inside[row]
        chosen[row] = select_flat(rows[row], candidates, count, generator)
    return chosen.reshape(pools.shape)


def select_flat(
    values: Tensor,
    among: Tensor | None,
    keep: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`select` in one pool: ``values`` float32 or float64, shape [n], ``among`` bool [n]."""
    num_candidates = values.numel() if among is None else num_true(among)
    if keep <= 0 or num_candidates == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    if keep >= num_candidates:
        numbers = ~values.isnan()
        return numbers if among is None else numbers.logical_and_(among)
    if values.device.type == "cpu":
        inside = None if among is None else among.numpy()
        threshold = float(kth_largest(values.numpy(), inside, keep, num_candidates))
        chosen = torch.from_numpy(values.numpy() >= threshold)  # three times faster than torch's
    else:
        pool = values if among is None else values[among]
        pool = pool.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        # CUDA's kthvalue has one block of threads for a whole tensor; a sort fills the GPU.
        threshold = float(pool.sort().values[num_candidates - keep])
        chosen = values >= threshold
    if among is not None:
        chosen.logical_and_(among)
    surplus = num_true(chosen) - keep
    if surplus > 0:
        ties = (values == threshold).logical_and_(chosen).nonzero().squeeze(1)
        order = _order_of_ties((ties.numel(),), ties.device, generator)
        chosen[(ties if order is None else ties[order])[-surplus:]] = False
    return chosen


def _order_of_ties(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor | None:
    """A random permutation of the last dimension, earlier preferred; None for that of positions."""
    if generator is None:
        return None
    draw = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return draw.argsort(-1).to(device)


def kth_largest(
    values: np.ndarray, among: np.ndarray | None, keep: int, num_candidates: int
) -> np.floating:
    """The ``keep``-th largest of some values; minus infinity if there are fewer but for NaN.

    A sample brackets it, and only what lies between is sorted, or all where the sample misleads.
    ``num_candidates`` of the values [n] count (NaN included): those of ``among``, or all.
    """
    if values.size > _SMALL and num_candidates > _SMALL // 8:
        low, high = _bracket(values, among, keep / num_candidates)
        above, inside = values > high, values >= low
        if among is not None:
            above &= among
            inside &= among
        num_above = int(np.count_nonzero(above))
        inside ^= above
        between = np.sort(values[np.flatnonzero(inside)])  # of a few, faster than by mask
        if num_above < keep <= num_above + between.size:
            return between[num_above - keep]
    candidates = values if among is None else values[among]
    ranked = np.sort(candidates[~np.isnan(candidates)])
    return ranked[-keep] if keep <= ranked.size else values.dtype.type(-math.inf)


def _bracket(
    values: np.ndarray, among: np.ndarray | None, fraction: float
) -> tuple[np.floating, np.floating]:
    """Two values between which the best ``fraction`` most likely ends; infinite where unsure."""
    positions = (spread_points() * values.size).astype(np.int64)
    sample = values[positions]
    usable = ~np.isnan(sample)
    if among is not None:
        usable &= among[positions]
    sample = np.sort(sample[usable])
    place = sample.size * (1 - fraction)
    margin = 3 * math.sqrt(place * fraction) + 2
    low, high = math.floor(place - margin), math.ceil(place + margin)
    return (
        sample[low] if low >= 0 else values.dtype.type(-math.inf),
        sample[high] if high < sample.size else values.dtype.type(math.inf),
    )


@functools.cache
def spread_points() -> np.ndarray:
    # Multiples of the golden ratio: evenly spread, and in step with no layout of rows.
    return np.arange(1, _SMALL // 4 + 1) * ((math.sqrt(5) - 1) / 2) % 1.0


def _select_rows(
    values: Tensor, among: Tensor | None, keeps: Tensor, generator: torch.Generator | None
) -> Tensor:
    """`select` in many pools by one sort: ``values`` [pools, n], ``keeps`` int64 [pools]."""
    valid = ~values.isnan()
    if among is not None:
        valid.logical_and_(among)
    # -inf is a legal score, which comes before those that do not count.
    filled = values.nan_to_num(posinf=math.inf).masked_fill(~valid, -math.inf)
    order = _order_of_ties(tuple(values.shape), values.device, generator)
    if order is not None:
        filled, valid = filled.gather(-1, order), valid.gather(-1, order)
    ranking = filled.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(values.shape[-1], device=values.device)
    taken = places.expand_as(ranking) < keeps.unsqueeze(-1)
    chosen = torch.zeros_like(valid).scatter_(-1, ranking, taken).logical_and_(valid)
    if order is not None:
        chosen = torch.zeros_like(chosen).scatter_(-1, order, chosen)
    return chosen
