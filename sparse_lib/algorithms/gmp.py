"""Gradual magnitude pruning."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from sparse_lib.dynamic import DynamicSparsityAlgorithm
from sparse_lib.masks import make_mask_topk_sparsity


class GMP(DynamicSparsityAlgorithm):
    """Gradual magnitude pruning (Zhu and Gupta 2017, arXiv:1710.01878).

    At each update step the mask becomes the largest weights at the scheduled sparsity. Since
    masked weights are zero, a rising schedule only removes weights; a falling one brings back
    positions in order of index. Arguments: see :class:`DynamicSparsityAlgorithm`; ``sparsity`` is
    meant to be a schedule, such as the paper's ``cubic``.
    """

    needs_sparsity: ClassVar[bool] = True

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest magnitudes; among zeros, present weights first."""
        score = p.abs().masked_fill(~mask, -1)
        return make_mask_topk_sparsity(
            score, sparsity, score_shaper=self.score_shaper, compat=self.compat
        )
