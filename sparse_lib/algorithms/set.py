"""Sparse evolutionary training."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.masks.makers import add_random, random_score


class SET(DropAndGrow):
    """Sparse evolutionary training (Mocanu et al. 2018, doi:10.1038/s41467-018-04316-3).

    `DropAndGrow` with growth at random, drawn for each parameter and update from a generator
    of their own (see ``seed`` of `SparsityAlgorithm`). By default grown weights start at
    zero as in the Cerebras library; ``grown_init="normal"`` re-draws them as the paper does. The
    paper drops as many of the smallest positive as of the largest negative
    weights; here both compete by magnitude, as in the Cerebras library.
    """

    needs_sparsity: ClassVar[bool] = True

    def grow(self, p: Tensor, kept: Tensor, count: int, sparsity: float) -> Tensor:
        """Every set of absent weights is as likely, from the parameter's own generator.

        A subclass with a ``grow_score`` of its own grows by that.
        """
        if self.score_shaper is not None or type(self).grow_score is not SET.grow_score:
            return super().grow(p, kept, count, sparsity)
        missing = self.rules.count(sparsity, p.numel()) - count
        return add_random(kept, missing, self.generator(p))

    def grow_score(self, p: Tensor) -> Tensor:
        """Uniform random, from the parameter's own generator."""
        return random_score(p, self.generator(p))
