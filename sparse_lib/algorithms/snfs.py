"""SNFS: sparse networks from scratch, or sparse momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse_lib.checks import check_choice, check_fraction
from sparse_lib.core import distributed
from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.core.states import saved_tensors
from sparse_lib.masks import shards
from sparse_lib.masks.counts import allot, num_true
from sparse_lib.masks.makers import (
    add_best,
    make_mask_drop_minimum,
    make_masks_global_topk,
    visible_magnitude,
)


class SNFS(DropAndGrow):
    """Sparse momentum (Dettmers and Zettlemoyer 2019, arXiv:1907.04840).

    `DropAndGrow` whose growth score is the magnitude of the momentum of the dense gradient:
    ``m <- momentum * m + (1 - momentum) * gradient`` after every optimizer step, of all positions,
    which start at 0. So every step costs a dense weight gradient, ``2 f_S + f_D`` FLOPs (Evci et
    al. 2020, appendix H), and a dense tensor beside each weight.

    ``redistribution="none"``, the default, keeps each tensor's sparsity, as Evci et al. 2020
    compare it. ``redistribution="momentum"`` is the paper's (section 3): what all tensors drop
    together grows in proportion to the mean magnitude of the momentum of each tensor's present
    weights, as far as there is room, and what finds no room goes to the others in the same
    proportion. The sum over tensors is then that of their targets.

    The authors' code takes the optimizer's own momentum (of Adam both moments) and drops half of
    the weights, annealed linearly; it adapts the drop threshold until the fraction is met within
    some tolerance, which is exact here.

    Args:
        update: See `DynamicSparsityAlgorithm`; the paper's interval is an epoch.
        momentum: Share of the past in the momentum, in [0, 1].
        redistribution: ``"none"`` or ``"momentum"``.
    """

    needs_sparsity: ClassVar[bool] = True
    uses_dense_gradient: ClassVar[bool] = True

    def __init__(
        self, *args: Any, momentum: float = 0.9, redistribution: str = "none", **kwargs: Any
    ) -> None:
        self.momentum = check_fraction(momentum, "momentum")
        choices = ("none", "momentum")
        self.redistribution = check_choice(redistribution, "redistribution", choices)
        self._momenta: dict[str, Tensor] = {}
        super().__init__(*args, **kwargs)
        if redistribution == "momentum" and self.score_shaper is not None:
            raise ValueError(
                "redistribution='momentum' decides over all tensors together; it takes no "
                "score_shaper"
            )

    @property
    def keeps_dense_gradient(self) -> bool:
        """Always: the momentum takes in every step."""
        return True

    def momentum_of(self, p: Tensor) -> Tensor:
        """The momentum of the dense gradient of a sparse parameter, of its shape; 0 at first."""
        name = self.sparse_param(p).name
        found = self._momenta.get(name)
        return torch.zeros_like(p) if found is None else found.to(p.device, p.dtype)

    def grow_score(self, p: Tensor) -> Tensor:
        """Magnitude of the momentum."""
        return self.momentum_of(p).abs()

    def read_gradients(self) -> None:
        """Take the gradients of a step, averaged over ranks, into the momentum."""
        kept = self.dense_gradients.kept
        shared = [kept[name] for name in self.sparse_params if name in kept]
        distributed.average_(one for one in shared if not shards.is_sharded(one))
        for name, gradient in kept.items():
            sparse = self.sparse_params[name]
            gradient = self.dense_gradients.as_optimized(sparse, gradient)
            gradient = torch.where(gradient.isfinite(), gradient, 0).to(sparse.param.dtype)
            momentum = self.momentum_of(sparse.param)
            self._momenta[name] = momentum.lerp_(gradient, 1 - self.momentum)

    def share_gradients(self) -> None:
        """Nothing: the momenta are those of all ranks."""

    def new_masks(
        self, params: Mapping[str, SparseParameter], targets: Mapping[str, float]
    ) -> Iterable[tuple[str, Tensor]]:
        """Tensor by tensor, or with what was dropped spread over all of them."""
        if self.redistribution == "none" or not params:
            return super().new_masks(params, targets)
        scores = {n: torch.where(s.mask, visible_magnitude(s.param), -1) for n, s in params.items()}
        kept = {
            name: make_mask_drop_minimum(scores[name], sparse.mask, self.drop_fraction)[0]
            for name, sparse in params.items()
        }
        sizes = {name: sparse.param.numel() for name, sparse in params.items()}
        goal = sum(self.rules.count(targets[name], size) for name, size in sizes.items())
        if goal < sum(map(num_true, kept.values())):
            left = {n: torch.where(mask, scores[n], -1) for n, mask in kept.items()}
            return make_masks_global_topk(left, 1 - goal / sum(sizes.values())).items()
        room = {name: sizes[name] - num_true(mask) for name, mask in kept.items()}
        strength = {name: self._strength(sparse) for name, sparse in params.items()}
        shares = allot(goal - sum(map(num_true, kept.values())), strength, room)
        return [
            (name, add_best(self.checked_score("grow_score", s.param), kept[name], shares[name]))
            for name, s in params.items()
        ]

    def _strength(self, sparse: SparseParameter) -> float:
        """Mean magnitude of the momentum of the present weights; 0 without any."""
        momentum = shards.whole(self.momentum_of(sparse.param)).abs().double()
        mask = shards.whole(sparse.mask)
        return float(momentum[mask].sum()) / max(num_true(mask), 1)

    def state_dict(self) -> dict[str, Any]:
        momenta = {name: momentum.clone() for name, momentum in self._momenta.items()}
        return super().state_dict() | {"momenta": momenta}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        momenta = {}
        if not isinstance(state_dict, Mapping) or "momenta" in state_dict:
            momenta = dict(saved_tensors(state_dict, "momenta", self.sparse_params))
        super().load_state_dict(state_dict)
        self._momenta = {
            name: momentum.to(self.sparse_params[name].param.device, copy=True)
            for name, momentum in momenta.items()
        }
