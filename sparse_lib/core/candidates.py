"""What a mask update can need of a sharded or large dense gradient, in place of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_lib.masks import shards
from sparse_lib.masks.makers import add_best


@dataclass(frozen=True)
class Candidates:
    """A gradient where weights are present, and where the best of the absent ones could grow.

    Attributes:
        mask: The mask that was in place, bool, sharded or not.
        present: The gradient of this rank's present weights, shape [present].
        places: Flat indices of this rank's candidates, shape [candidates].
        values: Their gradient, shape [candidates].
        version: Of the mask's memory, then.
    """

    mask: Tensor
    present: Tensor
    places: Tensor
    values: Tensor
    version: int

    @classmethod
    def of(cls, gradient: Tensor, mask: Tensor, count: int) -> Candidates:
        """Keep the ``count`` largest magnitudes among absent weights of all ranks; a collective.

        Args:
            gradient: Dense gradient, sharded as ``mask`` is.
            mask: Bool mask of its shape.
            count: How many absent weights may grow, at least 0.
        """
        rows, present = shards.local(gradient.detach()), shards.local(mask)
        grown = shards.local(add_best(shards.as_shard(rows.abs(), mask), mask, count))
        places = grown.logical_xor_(present).view(-1).nonzero().squeeze(1)
        if rows.numel() < 2**31:
            places = places.int()
        return cls(mask, rows[present], places, rows.reshape(-1)[places], present._version)

    def expanded(self, fill: float = math.nan) -> Tensor:
        """The gradient, sharded as the mask is; ``fill`` where it was not kept.

        Raises:
            RuntimeError: If the mask has changed since.
        """
        present = shards.local(self.mask)
        if present._version != self.version:
            raise RuntimeError(
                "a mask was changed between the backward pass and the mask update that "
                "reads its dense gradient; change masks after the optimizer's step"
            )
        rows = torch.full(present.shape, fill, dtype=self.values.dtype, device=present.device)
        rows[present] = self.present
        rows.view(-1)[self.places] = self.values
        return shards.as_shard(rows, self.mask)
