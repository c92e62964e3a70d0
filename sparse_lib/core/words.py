"""Masks as words of a weight's width, by which masking is one operation on integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparse_lib.core.codes import Codes

if TYPE_CHECKING:
    from sparse_lib.core.guard import MaskGuard

# Words of a mask are kept for tensors up to this size: a step is faster by them, and small tensors
# are what a cache holds. Of larger ones they would be the largest part of what a mask costs.
LARGE = 2**20
_CHUNK = 2**16


def bytes_of_mask(weight: Tensor, *, changes: bool) -> int:
    """Bytes that a weight's mask takes between steps, whether it ``changes`` or stays.

    A byte per element, another one for the history once the mask has changed, and the words of
    masks that are not large.
    """
    words = weight.element_size() if weight.numel() <= LARGE else 0
    return weight.numel() * (1 + changes + words)


def select_large(bits: Tensor, mask: Tensor) -> None:
    """Set integers to zero, in place, where a mask on their device is zero, without its words."""
    if not is_on_cpu(bits) or not (bits.is_contiguous() and mask.is_contiguous()):
        bits.mul_(mask)
        return
    bits, mask = bits.view(-1), mask.view(-1)
    words = torch.empty(_CHUNK, dtype=bits.dtype, device=bits.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = mask[start : start + _CHUNK]
        bits[start : start + _CHUNK].bitwise_and_(words[: part.numel()].copy_(part).neg_())


def is_on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def fill(words: Tensor, mask: Tensor) -> Tensor:
    """Make words of a mask: all bits or none on a CPU, one or zero elsewhere."""
    words.copy_(mask)
    return words.neg_() if is_on_cpu(words) else words


def mask_together(selections: Iterable[tuple[MaskGuard, Tensor | Codes]]) -> None:
    """Set each tensor to zero, in place, where the mask of its guard is zero.

    On a GPU the small ones of one type take one call together: launching a kernel for each takes
    longer there than the kernels. On a CPU each is masked in turn.
    """
    together: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for guard, tensor in selections:
        pair = guard.bits_and_words(tensor)
        if pair is None:
            guard.select(tensor)
            continue
        all_bits, all_words = together.setdefault((pair[0].dtype, pair[0].device), ([], []))
        all_bits.append(pair[0])
        all_words.append(pair[1])
    for all_bits, all_words in together.values():
        torch._foreach_mul_(all_bits, all_words)
