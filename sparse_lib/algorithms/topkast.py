"""Top-KAST: always sparse in the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.checks import check_finite
from sparse_lib.core.hidden import HiddenWeights
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.core.states import saved_tensors
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true
from sparse_lib.masks.makers import visible_magnitude
from sparse_lib.schedules import Level, Updates, make_hyperparameter_schedule


class TopKAST(HiddenWeights):
    """Top-KAST (Jayakumar et al. 2020, arXiv:2106.03517).

    Of all values of a tensor, the set ``A`` of the largest ``num_nonzero(sparsity, n)`` computes
    (this is the mask), and the larger set ``B`` of the largest
    ``num_nonzero(backward_sparsity, n)`` gets gradients and is trained; values outside of ``B``
    rest, momentum and weight decay included. Both sets are chosen again at update steps. The
    exploration loss adds ``regularization * w`` to the gradient of weights in ``A`` and
    ``regularization * w / density`` to that of weights in ``B`` alone, where ``density`` is the
    share of ``A`` (the paper's exploration regularisation, with squares). The paper's selection
    runs on the host every 100 steps; here it is wherever the weights are. The paper computes the
    weight gradient of ``B`` alone, ``2 f_A + f_B`` FLOPs a step; here that of all weights is
    computed and counted, ``2 f_A + f_D``, and what clips gradients before the optimizer's step
    sees all of it.

    Args:
        sparsity: Sparsity of the forward pass, see `SparsityAlgorithm`.
        init_method: See `SparsityAlgorithm`; the largest weights by default.
        backward_sparsity: Sparsity of ``B``, at most that of ``A``: a number or a schedule; None
            trains all weights (``B`` is everything).
        regularization: Factor of the exploration loss.
    """

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "topk",
        *,
        backward_sparsity: Level | None = None,
        regularization: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.backward_schedule = make_hyperparameter_schedule(
            0.0 if backward_sparsity is None else backward_sparsity,
            key="backward_sparsity",
            compat=kwargs.get("compat"),
        )
        if (
            isinstance(sparsity, int | float)
            and isinstance(backward_sparsity, int | float)
            and backward_sparsity > sparsity
        ):
            raise ValueError(
                f"backward_sparsity must be at most sparsity, which is {sparsity!r}, not "
                f"{backward_sparsity!r}"
            )
        self.regularization = check_finite(regularization, "regularization", least=0)
        self._trained: dict[str, Tensor] = {}
        super().__init__(sparsity, update, init_method, **kwargs)

    def trained(self, p: Tensor) -> Tensor:
        """The set ``B`` of a sparse parameter as a bool tensor of its shape."""
        sparse = self.sparse_param(p)
        if sparse.name not in self._trained:
            with self.making_mask_of(sparse):
                self._trained[sparse.name] = self._choose(self._whole_of(sparse), sparse.mask)
        return self._trained[sparse.name].to(p.device)

    def _choose(self, whole: Tensor, mask: Tensor) -> Tensor:
        value = min(max(float(self.backward_schedule(self.step, self._updating)), 0.0), 1.0)
        score = torch.where(mask, torch.inf, visible_magnitude(whole))
        return self.keep_best(score, value) | mask

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest values of all; and ``B`` with them."""
        new = self.keep_best(visible_magnitude(p), sparsity)
        self._trained[self.sparse_param(p).name] = self._choose(p, new)
        return new

    def change_gradient(self, p: Tensor, mask: Tensor, gradient: Tensor) -> None:
        """Add the exploration loss, and select ``B``."""
        trained = self.trained(p)
        if self.regularization:
            density = max(num_true(mask), 1) / mask.numel()
            gradient.add_(torch.where(mask, p, p / density), alpha=self.regularization)
        gradient.masked_fill_(~trained, 0)

    def project(self, optimizer: Optimizer) -> None:
        """Undo what momentum or weight decay did outside of ``B``."""
        for name, sparse in self.sparse_params.items():
            sparse.param.copy_(
                torch.where(self.trained(sparse.param), sparse.param, self._whole[name])
            )
        super().project(optimizer)

    def weight_was_loaded(self, sparse: SparseParameter) -> bool:
        """As `HiddenWeights`; ``B`` is chosen again from the loaded values."""
        replaced = super().weight_was_loaded(sparse)
        if replaced:
            self._trained.pop(sparse.name, None)
        return replaced

    def advance_schedules(self, due: bool) -> None:
        super().advance_schedules(due)
        self.backward_schedule.update(due)

    def state_dict(self) -> dict[str, Any]:
        trained = {name: self.trained(s.param).clone() for name, s in self.sparse_params.items()}
        return super().state_dict() | {
            "trained": trained,
            "backward_sparsity": dict(self.backward_schedule.state_dict()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        saved = saved_tensors(state_dict, "trained", self.sparse_params, all_of_them=True)
        if not isinstance(schedule := state_dict.get("backward_sparsity"), Mapping):
            raise ValueError("the state has no mapping backward_sparsity")
        super().load_state_dict(state_dict)
        self.backward_schedule.load_state_dict(dict(schedule))
        for name, tensor in saved.items():
            mine = tensor.to(self._whole[name].device, copy=True)
            self._trained[name] = shards.fitted(mine, self._whole[name])
