"""Sets to zero what a mask does not keep, NaN and infinity too.

It multiplies the bits of a value, taken as an integer, by one or zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparse_lib.core.codes import Codes
from sparse_lib.masks import shards

if TYPE_CHECKING:
    from sparse_lib.core.guard import MaskGuard

_SAME_SIZE_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Words of a mask are kept for tensors up to this size: a step is faster by them, and small tensors
# are what a cache holds. Of larger ones they would be the largest part of what a mask costs.
LARGE = 2**20
_CHUNK = 2**16


class Selection:
    """Selects by one parameter's mask, of which it keeps the words: integers of one or zero."""

    def __init__(self) -> None:
        self._words: dict[tuple[int, torch.device], Tensor] = {}
        self._words_of: tuple[Tensor | None, int] = (None, -1)

    def apply(self, mask: Tensor | None, tensor: Tensor | Codes) -> None:
        """Set a tensor of the mask's shape, dense, COO or in codes, to zero where the mask is.

        Args:
            mask: bool, or None in models that were made dense, where nothing is to do.
        """
        if (pair := self.apply_or_defer(mask, tensor)) is not None:
            pair[0].mul_(pair[1])

    def apply_or_defer(
        self, mask: Tensor | None, tensor: Tensor | Codes
    ) -> tuple[Tensor, Tensor] | None:
        """`apply`, or return what is left to multiply: integers of the tensor and of the mask."""
        if mask is None:
            return None
        mask = shards.local(mask)
        if isinstance(tensor, Codes):
            tensor.clear(~mask)
            return None
        tensor = shards.local(tensor.detach())
        integer = _SAME_SIZE_INTEGER.get(tensor.element_size())
        if tensor.layout == torch.sparse_coo:
            kept = mask.to(tensor.device)[tuple(tensor._indices())]
            tensor._values().masked_fill_(kept.logical_not(), 0)
        elif integer is None or tensor.is_complex():
            tensor.masked_fill_(mask.to(tensor.device).logical_not(), 0)
        elif tensor.numel() > LARGE:
            _multiply_in_parts(tensor.view(integer), mask.to(tensor.device))
        elif not tensor.is_cpu:
            return tensor.view(integer), self._words_for(mask, integer, tensor)
        else:
            tensor.view(integer).mul_(self._words_for(mask, integer, tensor))
        return None

    def _words_for(self, mask: Tensor, integer: torch.dtype, tensor: Tensor) -> Tensor:
        known, version = self._words_of
        if known is not mask:
            self._words.clear()
        elif version != mask._version:
            for stale in self._words.values():
                stale.copy_(mask)
        self._words_of = (mask, mask._version)
        key = (tensor.element_size(), tensor.device)
        if key not in self._words:
            self._words[key] = mask.to(tensor.device, integer)
        return self._words[key]


def bytes_of_mask(weight: Tensor, *, changes: bool) -> int:
    """Bytes that a weight's mask takes between steps, whether it ``changes`` or stays.

    A byte per element, another one for the history once the mask has changed, and the words of
    masks that are not large.
    """
    words = weight.element_size() if weight.numel() <= LARGE else 0
    return weight.numel() * (1 + changes + words)


def _multiply_in_parts(bits: Tensor, mask: Tensor) -> None:
    """Multiply integers by a bool mask of their shape, in place; on a CPU by words of few rows."""
    rows = max(1, _CHUNK * len(bits) // bits.numel()) if bits.is_cpu else len(bits)
    for part, kept in zip(bits.split(rows), mask.split(rows), strict=True):
        part.mul_(kept.to(part.dtype) if part.is_cpu else kept)


def select_together(selections: Iterable[tuple[MaskGuard, Tensor | Codes]]) -> None:
    """Set each tensor to zero, in place, where the mask of its guard is zero.

    On a GPU the small ones of one type take one call together: launching a kernel for each takes
    longer there than the kernels.
    """
    together: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for guard, tensor in selections:
        if (pair := guard.selection.apply_or_defer(guard.mask, tensor)) is None:
            continue
        all_bits, all_words = together.setdefault((pair[0].dtype, pair[0].device), ([], []))
        all_bits.append(pair[0])
        all_words.append(pair[1])
    for all_bits, all_words in together.values():
        torch._foreach_mul_(all_bits, all_words)
