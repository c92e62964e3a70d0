"""Gradual magnitude pruning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse_lib.checks import check_choice
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.masks.makers import visible_magnitude
from sparse_lib.schedules import Level, Updates


class GMP(DynamicSparsityAlgorithm):
    """Gradual magnitude pruning (Zhu and Gupta 2017, arXiv:1710.01878).

    After the weight update of an update step ``t``, the mask of a tensor of ``n`` weights becomes
    the ``num_nonzero(sparsity(t), n)`` largest magnitudes, present positions before absent ones.
    So a rising schedule only removes weights, and never brings one back; a falling one also
    revives absent positions, in order of index (row-major) and from 0. A weight that is NaN counts
    as infinite, so that it stays and shows. No gradient is used.

    Args:
        sparsity: See `SparsityAlgorithm`; meant to be a schedule, such as the paper's
            ``cubic``.
        tie_breaker: Which of equal magnitudes stays: ``"first"`` (the lower index) or
            ``"random"`` (from the parameter's own generator).
    """

    needs_sparsity: ClassVar[bool] = True

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "random",
        *,
        tie_breaker: str = "first",
        **kwargs: Any,
    ) -> None:
        self.tie_breaker = check_choice(tie_breaker, "tie_breaker", ("first", "random"))
        super().__init__(sparsity, update, init_method, **kwargs)

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest magnitudes; among zeros, present weights first."""
        score = torch.where(mask, visible_magnitude(p), -1)
        generator = self.generator(p) if self.tie_breaker == "random" else None
        ties = {"tie_breaker": self.tie_breaker, "generator": generator}
        return self.keep_best(score, sparsity, **ties)
