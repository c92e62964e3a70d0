"""Gradual pruning by saliency."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_lib.algorithms.gmp import GMP


class SaliencyPruning(GMP):
    """Gradual pruning by ``abs(weight * gradient)``, the first-order change of the loss.

    The criterion of Molchanov et al. 2017 (arXiv:1611.06440, equation 7) for single weights, in the
    schedule of `GMP`; JaxPruner (Lee et al. 2024) calls it saliency pruning. The gradient is
    that of the optimizer step just taken, masked, as ``.grad`` holds it (JaxPruner's is of the step
    about to be taken, and unmasked, so that absent positions score too, with a weight of zero).
    Present positions go before absent ones. A score that is NaN counts as infinite, so that the
    weight stays and shows. Arguments as of `GMP`, whose ``tie_breaker`` has no effect here.
    """

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest saliencies among present positions, then absent ones."""
        if p.grad is None:
            raise RuntimeError(
                f"no gradient of {self.sparse_param(p).name!r} is there to rank its weights by; "
                "update masks before the gradients are cleared"
            )
        gradient = p.grad.to_dense() if p.grad.is_sparse else p.grad
        score = (p.detach() * gradient.detach()).abs().nan_to_num_(nan=math.inf, posinf=math.inf)
        return self.keep_best(torch.where(mask, score, -1), sparsity)
