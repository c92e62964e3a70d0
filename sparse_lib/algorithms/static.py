"""Static sparsity: one mask, kept for the whole training."""

from __future__ import annotations

from typing import ClassVar

from torch.optim import Optimizer

from sparse_lib.core.algorithm import SparsityAlgorithm


class Static(SparsityAlgorithm):
    """Masks chosen before training and never changed.

    ``init_method`` chooses them at `apply`, with the sparsity of step 0. Nothing grows, and
    masked weights stay at 0: see `sparse_lib.core.driver` for what is enforced in a step.

    With ``init_method="snip"`` and ``distribution="snip"`` this is SNIP (Lee et al. 2019); with
    ``init_method="topk"`` it is one-shot magnitude pruning.
    """

    needs_sparsity: ClassVar[bool] = True
    updates_masks: ClassVar[bool] = False

    def update(self, optimizer: Optimizer | None = None) -> None:
        """Nothing changes."""

    def is_update_step(self, step: int) -> bool:
        """Never."""
        return False
