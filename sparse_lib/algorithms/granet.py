"""GraNet: gradual pruning with neuroregeneration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.checks import check_choice
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks.counts import num_true
from sparse_lib.masks.makers import (
    add_best,
    make_mask_drop_minimum,
    make_masks_global_topk,
    visible_magnitude,
)
from sparse_lib.schedules import Level, Updates


class GraNet(RigL):
    """GraNet (Liu et al. 2021, arXiv:2106.10404).

    ``pruning="tensor"``, the default, is the GraNet of the Cerebras blog: RigL with a rising
    sparsity schedule and nothing else.

    ``pruning="global"`` is the paper's own. After the weight update of an update step ``t``:

    1. Prune: of all tensors' present weights together, the largest magnitudes stay, as many as the
       scheduled sparsity allows over all weights; each tensor keeps at least its best weight.
    2. Regrow: each tensor drops the ``drop_fraction(t)`` smallest of what is left, and grows as
       many absent positions, where the dense gradient of the step is largest in magnitude.
       Positions pruned or dropped just now compete too, and keep their values if they win.

    Values, ties, NaN and gradients are as in `RigL`. The paper's code drops
    ``ceil(drop_fraction * n)``; here it is rounded to the nearest. Its recipe: a ``cubic``
    schedule, and a cosine ``drop_fraction`` from 0.5 to 0.005 over the whole run.

    Args:
        sparsity: Schedule of the sparsity, such as ``cubic`` from 0 or 0.5 to 0.8.
        pruning: ``"tensor"`` or ``"global"``.
    """

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "random",
        *,
        pruning: str = "tensor",
        **kwargs: Any,
    ) -> None:
        self.pruning = check_choice(pruning, "pruning", ("tensor", "global"))
        super().__init__(sparsity, update, init_method, **kwargs)
        if pruning == "global" and self.score_shaper is not None:
            raise ValueError(
                "pruning='global' decides over all tensors together; it takes no score_shaper and "
                "no balance_in_groups or balance_out_groups"
            )

    def new_masks(
        self, params: Mapping[str, SparseParameter], targets: Mapping[str, float]
    ) -> Iterable[tuple[str, Tensor]]:
        """As RigL, or over all tensors."""
        if self.pruning == "tensor" or not params:
            return super().new_masks(params, targets)
        total = sum(sparse.param.numel() for sparse in params.values())
        zeros = sum(targets[name] * sparse.param.numel() for name, sparse in params.items())
        scores = {n: torch.where(s.mask, visible_magnitude(s.param), -1) for n, s in params.items()}
        pruned = make_masks_global_topk(scores, round(zeros / total, 12), compat=self.rules)
        masks = {}
        for name, sparse in params.items():
            kept, count = make_mask_drop_minimum(scores[name], pruned[name], self.drop_fraction)
            num_grown = num_true(pruned[name]) - count
            new = add_best(self.checked_score("grow_score", sparse.param), kept, num_grown)
            dropped = torch.where(pruned[name] & ~new, scores[name], torch.nan)
            masks[name] = add_best(dropped, new, count + num_grown - num_true(new))
        return masks.items()
