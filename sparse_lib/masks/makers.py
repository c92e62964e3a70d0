"""Mask makers: pure functions from scores to boolean masks.

Rules turn a sparsity into a number of weights, and everything random goes through
`generator`, so masks are exact and reproducible.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparse_lib.checks import check_choice
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true
from sparse_lib.masks.selection import comparable, select, select_flat
from sparse_lib.masks.shapers import ScoreFlattener, ScoreShaper, make_score_shaper
from sparse_lib.rules import Rules, rules_of


def generator(seed: int, name: str, index: int) -> torch.Generator:
    """A private random generator for one parameter at one mask update (0 is initialisation).

    The seed is the SHA-256 of the three values, so it depends neither on the order of parameters,
    nor on the process, nor on what was drawn before; adding a layer changes no other mask.
    """
    digest = hashlib.sha256(f"{int(seed)}\0{name}\0{int(index)}".encode()).digest()
    private = torch.Generator(device="cpu")
    private.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return private


def random_score(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Uniform float32 scores of the shape of ``like``, drawn where the generator lives.

    bfloat16 has so few values in [0, 1) that most weights of a layer would tie.
    """
    where = like.device if generator is None else generator.device
    score = torch.rand(like.shape, generator=generator, device=where, dtype=torch.float32)
    return shards.fitted(score.to(like.device), like)


@torch.no_grad()
def make_mask_topk_sparsity(
    score: Tensor,
    sparsity: float,
    score_shaper: str | Mapping | ScoreShaper | None = None,
    *,
    tie_breaker: str | None = None,
    generator: torch.Generator | None = None,
    compat: str | Rules | None = None,
) -> Tensor:
    """Keep the highest scores.

    Args:
        score: Scores of any shape and real dtype. NaN is never kept.
        sparsity: Fraction of zeros wanted, in [0, 1].
        score_shaper: Which scores compete, as
            `sparse_lib.masks.shapers.make_score_shaper` takes it; by default the whole
            tensor.
        tie_breaker: ``"first"`` (default, lower index) or ``"random"``.
        generator: What ``"random"`` draws from.
        compat: How many weights stay at a sparsity.

    Returns:
        Boolean mask of the shape of ``score`` with exactly ``num_nonzero(sparsity, pool)`` True
        in each pool (fewer only if too few scores are numbers).

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, or the shaper does not fit the shape.
    """
    rules = rules_of(compat)
    shaper = _shaper_for(score, score_shaper)
    check_choice(tie_breaker or "first", "tie_breaker", ("first", "random"))
    if tie_breaker == "random" and generator is None:
        raise ValueError("tie_breaker 'random' needs a generator, so that it is reproducible")
    pools, undo = _pools(score, shaper)
    keep = shaper.count(sparsity, pools.shape[-1], compat=rules)
    return undo(select(pools, None, keep, generator if tie_breaker == "random" else None))


def visible_magnitude(weight: Tensor) -> Tensor:
    """Magnitudes as scores by which to keep weights: infinite where a weight is NaN.

    Functions that select drop NaN, which would hide that training diverged.
    """
    return shards.by_shard(
        lambda rows: rows.abs().nan_to_num_(nan=math.inf, posinf=math.inf), weight.detach()
    )


@torch.no_grad()
def make_mask_drop_minimum(
    score: Tensor,
    mask: Tensor,
    drop_fraction: float,
    score_shaper: str | Mapping | ScoreShaper | None = None,
    *,
    compat: str | Rules | None = None,
) -> tuple[Tensor, int]:
    """Drop the lowest scores of a mask; only present weights compete.

    Args:
        score: Scores of any shape. NaN is always dropped.
        mask: Boolean mask, shape of ``score``.
        drop_fraction: Fraction of the present weights to drop, in [0, 1].
        score_shaper: Which scores compete; by default the whole tensor. Of equal ones the lower
            index stays.
        compat: How many weights stay at a sparsity.

    Returns:
        The smaller mask, which in each pool keeps ``num_nonzero(drop_fraction, present)``, and how
        many weights it has in total. Errors as of `make_mask_topk_sparsity`.
    """
    rules = rules_of(compat)
    shaper = _shaper_for(score, score_shaper)
    pools, undo = _pools(score, shaper)
    present = _pools(_checked_mask(mask, score), shaper)[0]
    keeps: int | Tensor
    if pools.dim() == 1:
        keeps = rules.count(drop_fraction, num_true(present))
    else:
        counts = present.sum(-1)
        keeps = counts.clone()
        for count in counts.unique().tolist():
            keeps[counts == count] = rules.count(drop_fraction, count)
    kept = undo(select(pools, present, keeps))
    return kept, num_true(kept)


@torch.no_grad()
def make_mask_grow_maximum(
    score: Tensor,
    mask: Tensor,
    sparsity: float,
    mask_nonzero: int | None = None,
    score_shaper: str | Mapping | ScoreShaper | None = None,
    *,
    compat: str | Rules | None = None,
) -> Tensor:
    """Add the highest scores among absent weights until a mask has the wanted sparsity.

    Args:
        score: Scores of any shape. NaN never grows.
        mask: Boolean mask, shape of ``score``; all of it stays.
        sparsity: Fraction of zeros wanted, in [0, 1]. A mask that already has more weights than
            that is returned as it is.
        mask_nonzero: Number of weights in ``mask``, if known (saves a count).
        score_shaper: Which scores compete; by default the whole tensor. Of equal ones the lower
            index grows.
        compat: How many weights stay at a sparsity.

    Returns:
        Boolean mask, a superset of ``mask``. Errors as of `make_mask_topk_sparsity`.
    """
    rules = rules_of(compat)
    shaper = _shaper_for(score, score_shaper)
    pools, undo = _pools(score, shaper)
    present = _pools(_checked_mask(mask, score), shaper)[0]
    size = pools.shape[-1]
    target = shaper.count(sparsity, size, compat=rules)
    grow: int | Tensor
    if pools.dim() == 1:
        # A given count is of weights, so it says nothing about blocks.
        known = mask_nonzero is not None and size == mask.numel()
        there = int(mask_nonzero or 0) if known else num_true(present)
        grow = max(0, target - there)
    else:
        grow = (target - present.sum(-1)).clamp(min=0)
    grown = select(pools, ~present, grow)
    return undo(grown.logical_or_(present))


@torch.no_grad()
def add_best(score: Tensor, mask: Tensor, count: int) -> Tensor:
    """Add the ``count`` highest scores among the absent weights of a mask; a superset of it.

    NaN never grows; of equal scores the lower index comes first.
    """
    present = shards.whole(mask)
    absent = present.logical_not().reshape(-1)
    grown = select_flat(comparable(shards.whole(score)).reshape(-1), absent, count)
    return shards.fitted(grown.view_as(present).logical_or_(present), mask)


@torch.no_grad()
def add_random(mask: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Add ``count`` absent weights (all, if there are fewer) to a mask; a superset of it.

    Every set of that size is as likely. ``generator`` is a private CPU generator.
    """
    grown = shards.whole(mask).clone(memory_format=torch.contiguous_format)
    flat, num_present = grown.view(-1), num_true(grown)
    num_absent = flat.numel() - num_present
    if 2 * count > num_absent or 4 * num_absent < flat.numel():
        absent = flat.logical_not().nonzero().squeeze(1)
        order = torch.randperm(num_absent, generator=generator, device="cpu")
        flat[absent[order[: max(count, 0)].to(flat.device)]] = True
    # Draws that hit a weight leave some missing, and never add too many.
    while (missing := num_present + min(count, num_absent) - num_true(grown)) > 0:
        drawn = torch.randint(flat.numel(), (missing,), generator=generator, device="cpu")
        flat[drawn.to(flat.device)] = True
    return shards.fitted(grown, mask)


@torch.no_grad()
def make_masks_global_topk(
    scores: Mapping[str, Tensor], sparsity: float, *, compat: str | Rules | None = None
) -> dict[str, Tensor]:
    """Keep the highest scores over several tensors together (global magnitude pruning).

    Args:
        scores: Name to scores. NaN is never kept.
        sparsity: Fraction of zeros wanted over all tensors, in [0, 1].
        compat: How many weights stay, and whether a tensor may lose all.

    Returns:
        Name to boolean mask; ``num_nonzero(sparsity, total)`` True in all. Unless the sparsity is
        1, each tensor keeps at least its best weight, in place of the weakest elsewhere. Ties go
        to the earlier tensor and the lower index.
    """
    rules = rules_of(compat)
    flat = [comparable(shards.whole(score)).reshape(-1) for score in scores.values()]
    keep = rules.count(sparsity, sum(values.numel() for values in flat))
    best = [torch.zeros_like(values, dtype=torch.bool) for values in flat]
    if keep and not rules.may_empty:
        best = [select_flat(values, None, 1) for values in flat]
        keep = max(0, keep - sum(map(num_true, best)))
    chosen: list[Tensor] = []
    if flat:
        more = select_flat(torch.cat(flat), ~torch.cat(best), keep)
        chosen = list(more.split([values.numel() for values in flat]))
    return {
        name: shards.fitted((own | more).reshape(score.shape), score)
        for (name, score), own, more in zip(scores.items(), best, chosen, strict=True)
    }


def _pools(tensor: Tensor, shaper: ScoreShaper) -> tuple[Tensor, Callable]:
    """The pools of a tensor, a whole one where it is sharded, and the way back."""
    pools, undo = shaper(shards.whole(tensor))
    return pools, lambda result: shards.fitted(undo(result), tensor)


def _shaper_for(score: Tensor, spec: Any) -> ScoreShaper:
    if not isinstance(score, Tensor):
        raise TypeError(f"score must be a tensor, not {_kind(score)}")
    return make_score_shaper(spec) or ScoreFlattener()


def _checked_mask(mask: Tensor, score: Tensor) -> Tensor:
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, not {_kind(mask)}")
    if mask.shape != score.shape:
        shapes = f"{tuple(score.shape)}, not {tuple(mask.shape)}"
        raise ValueError(f"mask must have the shape of score, {shapes}")
    return mask.bool()


def _kind(value: Any) -> str:
    """A value in words, without the numbers of an array."""
    return repr(value) if value is None else f"a {type(value).__name__}"
