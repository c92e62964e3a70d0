"""Algorithms that also train the weights which the mask hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.optimizers import gradient_scale, rising
from sparse_lib.core.parameter import FirstMask, SparseParameter
from sparse_lib.core.states import saved_tensors
from sparse_lib.masks import shards


class HiddenWeights(DynamicSparsityAlgorithm):
    """Base of algorithms whose forward pass is sparse and whose training is of all weights.

    The module's weight is zero where masked, as for every algorithm; the values behind are kept by
    the algorithm and put in place while the optimizer takes its step, with the gradient of the
    sparse forward pass (the straight-through estimator, Bengio et al. 2013, arXiv:1308.3432).
    Masks are updated from all values. That costs one copy of the weights, and another while a
    closure is evaluated, which sees sparse weights, also of what the optimizer writes between two
    evaluations. Values that ``load_state_dict`` writes replace the hidden ones. Of those written in
    other ways between steps, as by ``copy_`` or ``reset_parameters``, all that are not zero do:
    clipping and scaling of the sparse weight write zeros behind the mask, too. What is undone
    before the next step, as a perturbation or an average to evaluate, replaces nothing.

    A subclass defines ``update_mask(p, mask, sparsity)`` with ``p`` the whole weight, and may
    define `change_gradient`.
    """

    masks_gradients: ClassVar[bool] = False
    masks_states: ClassVar[bool] = False
    needs_sparsity: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._whole: dict[str, Tensor] = {}
        self._written: dict[str, Tensor] = {}  # behind the mask, since the last step
        super().__init__(*args, **kwargs)

    def change_gradient(self, p: Tensor, mask: Tensor, gradient: Tensor) -> None:
        """Change the dense gradient of the sparse forward pass in place, before the optimizer.

        ``p`` is the whole weight, hidden values in place, and ``mask`` its bool mask.
        """

    def hidden_weight(self, p: Tensor) -> Tensor:
        """A copy of a sparse parameter with hidden values in place; ValueError if it is none."""
        sparse = self.sparse_param(p)
        self.weight_was_written(sparse, sparse.param)
        return self._whole_of(sparse)

    def prepare(self, optimizer: Optimizer) -> None:
        """Call `change_gradient` on each gradient."""
        scale, upward = gradient_scale(optimizer), rising(optimizer)
        for sparse in self.sparse_params.values():
            if (gradient := sparse.param.grad) is None:
                continue
            factor: Tensor | float | None = scale
            if id(sparse.param) in upward:
                factor = -1.0 if scale is None else -scale
            if factor is not None:
                gradient.div_(factor)
            self.change_gradient(sparse.param, sparse.mask, gradient)
            if factor is not None:
                gradient.mul_(factor)

    def project(self, optimizer: Optimizer) -> None:
        """Keep what the optimizer wrote; the sparse weight is made of it next."""
        for name, sparse in self.sparse_params.items():
            self._whole[name].copy_(sparse.param)

    def place_hidden(self) -> None:
        for name, sparse in self.sparse_params.items():
            self._whole[name] = self._whole_of(sparse)
            sparse.param.copy_(self._whole[name])
        self._written.clear()

    def _whole_of(self, sparse: SparseParameter) -> Tensor:
        weight, mask, kept = sparse.param.detach(), sparse.mask, self._kept_of(sparse)
        written = self._written.get(sparse.name)
        if written is not None and not _is_back(*_locally(weight, kept, mask)):
            kept = torch.where(written != 0, written, kept)
        return torch.where(mask, weight, kept)

    def _kept_of(self, sparse: SparseParameter) -> Tensor:
        """The kept values, which follow the parameter's device and dtype."""
        kept = self._whole[sparse.name].to(sparse.param.device, sparse.param.dtype)
        self._whole[sparse.name] = kept
        return kept

    def put_first_masks(self, first: Sequence[FirstMask]) -> None:
        for sparse, *_ in first:
            self._whole[sparse.name] = sparse.param.detach().clone()
        super().put_first_masks(first)

    def weight_was_written(self, sparse: SparseParameter, weight: Tensor) -> None:
        behind = torch.where(sparse.mask, 0, weight.detach())
        if bool(shards.local(behind).any()):
            before = self._written.get(sparse.name, behind)
            self._written[sparse.name] = torch.where(behind != 0, behind, before)

    @torch.no_grad()
    def weight_was_loaded(self, sparse: SparseParameter) -> bool:
        """Hidden values are those of the file, unless it holds the weights that are kept."""
        self._written.pop(sparse.name, None)
        loaded, kept, mask = _locally(sparse.param, self._kept_of(sparse), sparse.mask)
        differs = int(not torch.equal(loaded[mask], kept[mask]))
        replaced = shards.total(differs, shards.group_of(sparse.param)) > 0
        if replaced:
            kept.copy_(loaded)
        return replaced

    def state_dict(self) -> dict[str, Any]:
        whole = {name: self.hidden_weight(s.param) for name, s in self.sparse_params.items()}
        return super().state_dict() | {"whole": whole}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        saved = saved_tensors(state_dict, "whole", self.sparse_params, all_of_them=True)
        super().load_state_dict(state_dict)
        for name, tensor in saved.items():
            whole = self._kept_of(self.sparse_params[name])
            whole.copy_(shards.fitted(tensor.to(whole.device), whole))


def _locally(*tensors: Tensor) -> list[Tensor]:
    return [shards.local(tensor.detach()) for tensor in tensors]


def _is_back(weight: Tensor, kept: Tensor, mask: Tensor) -> bool:
    """Whether present weights are what was kept, but for rounding: a change was undone."""
    error, size = (weight - kept)[mask].abs(), kept.abs().max()
    return bool((error <= 8 * torch.finfo(kept.dtype).eps * size).all())
