"""SR-STE: N:M sparsity learned from scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse_lib.checks import check_finite
from sparse_lib.core.hidden import HiddenWeights
from sparse_lib.masks.makers import visible_magnitude
from sparse_lib.schedules import Level, Updates


class SRSTE(HiddenWeights):
    """Sparse-refined straight-through estimator (Zhou et al. 2021, arXiv:2102.04010).

    The forward pass has the largest weights, of each group of M consecutive inputs with
    ``score_shaper="2:4"`` and the like. All weights are trained, with the gradient ``g`` at the
    sparse weights and a decay of those that are hidden (the paper's equation 9)::

        W <- W - rate * (g + decay * (1 - mask) * W)

    so masks settle. With ``decay=0`` it is the plain straight-through estimator. The paper's term
    is added to the gradient, as in its authors' code, so momentum and Adam see it.

    Args:
        sparsity: See `SparsityAlgorithm`; 0.5 for 2:4.
        update: See `DynamicSparsityAlgorithm`; masks follow the weights at every step by
            default, as in the paper.
        init_method: See `SparsityAlgorithm`; the largest weights by default.
        decay: Factor of the hidden weights, at least 0, 2e-4 in the paper.
    """

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "topk",
        *,
        decay: float = 2e-4,
        **kwargs: Any,
    ) -> None:
        self.decay = check_finite(decay, "decay", least=0)
        super().__init__(sparsity, update, init_method, **kwargs)

    def change_gradient(self, p: Tensor, mask: Tensor, gradient: Tensor) -> None:
        """Add the decay of hidden weights."""
        gradient.add_(torch.where(mask, 0, p), alpha=self.decay)

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest values of all."""
        return self.keep_best(visible_magnitude(p), sparsity)
