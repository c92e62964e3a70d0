"""SRigL: RigL with constant fan-in and neuron ablation."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.checks import check_fraction
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_nonzero, num_true
from sparse_lib.masks.makers import add_best, make_mask_drop_minimum, visible_magnitude
from sparse_lib.masks.shapers import OutputGroupScoreShaper


class SRigL(RigL):
    """Structured RigL (Lasby et al. 2023, arXiv:2305.02299).

    All outputs ("neurons") of a tensor that are active have the same number of weights. At an
    update step, with ``k = num_nonzero(sparsity, n)`` weights to have and ``a`` active neurons:

    1. The weights that survive the drop (as in RigL) and the absent positions with the largest
       dense gradient, ``k`` in all, are *salient*.
    2. An active neuron with fewer than ``ablation * (k // a)`` salient weights is ablated: it loses
       all weights and stays out. No more than ``k`` stay, and as many of those with the most
       salient weights as ``k`` weights fill, as in the authors' code.
    3. Each neuron that is left has ``k // a'`` weights: its largest survivors first, then the
       positions with the largest gradients.

    So a tensor has ``k - k % a'`` weights (fewer if ``k`` rises above what those left can have);
    vectors are treated as in RigL. Weights of layers of unknown kind, and tensors sharded by
    ``fully_shard``, are refused.

    Args:
        init_method: See `SparsityAlgorithm`; applied to each output alone.
        ablation: Share of its weights that must be salient in a neuron, in [0, 1]; 0 ablates none.
            The paper has 0.3 for convolutions and 0.95 for a vision transformer.
        **kwargs: See `RigL`; no ``score_shaper``.
    """

    exact_counts: ClassVar[bool] = False

    def __init__(self, *args: Any, ablation: float = 0.3, **kwargs: Any) -> None:
        self.ablation = check_fraction(ablation, "ablation")
        super().__init__(*args, **kwargs)
        if self.score_shaper is not None:
            raise ValueError("SRigL decides per output; it takes no score_shaper and no balance_*")

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """Ablate neurons, and give the others equally many weights."""
        if p.dim() < 2:
            return super().update_mask(p, mask, sparsity)
        layout = self.sparse_param(p).required_layout

        def rows(tensor: Tensor) -> Tensor:
            matrices = layout.matrices(tensor)
            return matrices.reshape(matrices.shape[:3].numel(), -1)

        wanted = num_nonzero(sparsity, p.numel())
        magnitude, present = rows(visible_magnitude(p)), rows(mask)
        gradient = rows(self.checked_score("grow_score", p)).nan_to_num(nan=-1.0)
        kept, count = make_mask_drop_minimum(magnitude, present, self.drop_fraction)
        active = present.any(1)
        candidates = gradient.masked_fill(present | ~active[:, None], torch.nan)  # no candidate
        salient = add_best(candidates, kept, max(wanted - count, 0)).sum(1)
        active = self._ablated(active, salient, wanted, magnitude.shape[1])
        fan_in = min(wanted // max(num_true(active), 1), magnitude.shape[1])
        # Survivors by magnitude come before all others by gradient; in float64, in which
        # magnitudes that differ in float32 still differ after 2 is added.
        large, steep = magnitude.double(), gradient.double()
        order = torch.where(kept, 2 + large / (1 + large), steep / (1 + steep))
        order = order.masked_fill(~active[:, None], -torch.inf)
        best = order.topk(fan_in, dim=1).indices
        new = torch.zeros_like(present).scatter_(1, best, True) & active[:, None]
        return layout.restore(new.reshape(layout.sizes(p.shape)), p.shape)

    def _ablated(self, active: Tensor, salient: Tensor, wanted: int, num_inputs: int) -> Tensor:
        fan_in = wanted // max(num_true(active), 1)
        salient = salient.masked_fill(~active, -1)
        order = salient.argsort(descending=True, stable=True)
        enough = salient >= self.ablation * fan_in
        enough[order[: max(-(-wanted // num_inputs), 1)]] = True
        enough[order[max(wanted, 1) :]] = False
        return active & enough

    def check_shape(self, sparse: SparseParameter) -> None:
        super().check_shape(sparse)
        assert sparse.required_layout
        if sparse.param.dim() > 1 and shards.is_sharded(sparse.param):
            raise ValueError(
                f"{sparse.name!r} is sharded, and SRigL decides over all outputs of a tensor; "
                "train it without fully_shard, or take RigL"
            )

    def initial_mask(self, sparse: SparseParameter, sparsity: float) -> Tensor:
        if sparse.param.dim() < 2:
            return super().initial_mask(sparse, sparsity)
        layout, shape = sparse.required_layout, sparse.param.shape
        sizes = layout.sizes(shape)
        num_outputs = math.prod(sizes[:3])
        num_inputs = sparse.param.numel() // num_outputs
        wanted = num_nonzero(sparsity, sparse.param.numel())
        fan_in = max(wanted // num_outputs, min(wanted, 1))
        shaper, draw = OutputGroupScoreShaper().for_layer(layout), self.generator(sparse.name)
        mask = self._init(sparse.param, 1 - fan_in / num_inputs, shaper, draw)
        if wanted < num_outputs:  # not even one for each
            out = torch.randperm(num_outputs, generator=draw)[wanted:].to(mask.device)
            kept = layout.matrices(mask).flatten(0, 2).index_fill(0, out, False)
            mask = layout.restore(kept.reshape(sizes), shape)
        return mask
