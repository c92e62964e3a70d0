"""First masks that are likely not to do what they were made for, told when they are made."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks import shards

LEAVE_OUT = "leave it out by param_filter or set its requires_dense to True"


def frozen_losses(
    model: nn.Module, made: Iterable[tuple[SparseParameter, Tensor | None]]
) -> list[str]:
    """Names of frozen weights whose values first masks are about to zero.

    None of a model that is frozen as a whole, which is pruned to be used, not trained; nor where a
    mask drops zeros alone, as those do that are taken from a pruned model.

    Args:
        model: What an algorithm is applied to; its weights are as they were.
        made: Its new sparse parameters with their first masks; None where a mask was there.
    """
    if not any(param.requires_grad for param in model.parameters()):
        return []
    return [
        sparse.name
        for sparse, mask in made
        if not sparse.param.requires_grad and mask is not None and _zeroes(sparse, mask)
    ]


def _zeroes(sparse: SparseParameter, mask: Tensor) -> bool:
    weight = shards.local(sparse.param.detach())
    if weight.is_meta:  # of a plan
        return False
    kept = shards.local(shards.fitted(mask.to(weight.device), sparse.param))
    return bool(((weight != 0) & (kept == 0)).any())


def told_of_frozen(names: Iterable[str]) -> list[str]:
    """A sentence for each frozen weight that a mask cuts."""
    return [
        f"{name!r} is frozen (requires_grad is False), so what its mask zeroes is lost and nothing "
        f"makes up for it; {LEAVE_OUT}"
        for name in names
    ]


@torch.no_grad()
def told_of_parametrizations(params: Iterable[tuple[SparseParameter, bool]]) -> list[str]:
    """A sentence for each mask whose zeros the weight that is computed from its parameter lacks.

    Of weight and spectral normalisation the zeros are those of the original, of an orthogonal
    matrix they are not. Each parametrization is computed once, as in evaluation.

    Args:
        params: Sparse parameters with their masks in place, and whether these will change. Of a
            full one that will, a mask of every second weight is tried instead.
    """
    return [
        f"the mask of {sparse.name!r} makes no zeros in the weight that "
        f"{', '.join(type(part).__name__ for part in sparse.module.children())} computes from it, "
        f"so the layer stays dense and its sparsity is not what plan and metrics say; {LEAVE_OUT}"
        for sparse, changes in params
        if isinstance(sparse.module, ParametrizationList) and not _keeps_zeros(sparse, changes)
    ]


def _keeps_zeros(sparse: SparseParameter, changes: bool) -> bool:
    """Whether a parametrized weight is zero wherever the mask of its original is."""
    original, mask = sparse.param.detach(), sparse.mask
    if original.is_meta or shards.is_sharded(original):
        return True  # nothing is known
    if changes and bool(mask.all()):
        every_second = torch.arange(mask.numel(), device=mask.device) % 2 == 0
        mask = every_second.view(mask.shape)
    masked = {sparse.param_name: original.masked_fill(~mask, 0)}
    devices = [original.device] if original.device.type == "cuda" else []
    training = [part for part in sparse.module.modules() if part.training]
    with torch.random.fork_rng(devices=devices):
        for part in training:  # spectral_norm moves its vectors on in training
            part.training = False
        try:
            weight = torch.func.functional_call(sparse.module, masked, ())
        finally:
            for part in training:
                part.training = True
    try:
        zeros = (~mask).expand(weight.shape)
    except RuntimeError:  # of another shape
        return False
    return not bool((weight.abs() > 0)[zeros].any())  # NaN, of a norm of 0, says nothing
