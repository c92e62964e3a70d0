"""Gradual pruning at random."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_lib.algorithms.gmp import GMP
from sparse_lib.masks.makers import random_score


class RandomPruning(GMP):
    """Gradual pruning of weights chosen at random: the baseline of JaxPruner (Lee et al. 2024).

    `GMP` with uniform random scores, drawn for each parameter and update from a generator of
    their own. Present positions go before absent ones, so that a rising sparsity only removes
    weights; JaxPruner ranks all positions again at each update, so that its mask is another each
    time. Arguments as of `GMP`, whose ``tie_breaker`` has no effect here.
    """

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """Present positions at random, absent ones after them."""
        score = random_score(p, self.generator(p))
        return self.keep_best(torch.where(mask, score, score - 1), sparsity)
