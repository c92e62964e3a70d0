"""Algorithms whose masks change on a schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib import distributed
from sparse_lib.algorithm import SparsityAlgorithm, states_like
from sparse_lib.masks import (
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
)
from sparse_lib.parameters import SparseParameter
from sparse_lib.schedules import make_hyperparameter_schedule, make_update_schedule

GROWN_INITS = ("zeros", "normal", "uniform", "gradient", "gradient_sign")


class DynamicSparsityAlgorithm(SparsityAlgorithm):
    """Base of algorithms that replace masks on update steps.

    Subclasses define ``update_mask(p, mask, sparsity)``. Between update steps nothing is computed.
    A parameter without a gradient at an update step keeps its mask.

    Args:
        sparsity: See :class:`SparsityAlgorithm`.
        update: Which steps are update steps: None (every one), an int frequency,
            ``{"freq", "start", "stop"}`` (stop is exclusive), ``{"steps": [...]}``, a callable or
            an ``UpdateSchedule``.
        init_method: See :class:`SparsityAlgorithm`.
        grown_init: Where grown weights start: ``"zeros"`` (RigL, Evci et al. 2020), ``"normal"``
            or ``"uniform"`` (drawn with the spread of the present weights; SET, Mocanu et al.
            2018, re-draws), ``"gradient"`` or ``"gradient_sign"`` (minus the dense gradient or
            its sign, times ``grown_init_scale``; options of the RigL authors' code).
        grown_init_scale: Factor of ``grown_init``.
        skip_update_on_mask_steps: Leave the weights alone on mask-update steps, as the RigL paper
            (algorithm 1) and JaxPruner do.
        reset_momentum: Also zero the ``requires_dense`` optimizer states of grown weights (all
            other states start at zero anyway), as JaxPruner does.
        **kwargs: See :class:`SparsityAlgorithm`.
    """

    uses_dense_gradient: ClassVar[bool] = False
    """True if ``update_mask`` reads :meth:`dense_gradient`."""

    def __init__(
        self,
        sparsity: Any = None,
        update: Any = None,
        init_method: str | Callable = "random",
        *,
        grown_init: str = "zeros",
        grown_init_scale: float = 1.0,
        skip_update_on_mask_steps: bool = False,
        reset_momentum: bool = False,
        **kwargs: Any,
    ) -> None:
        if grown_init not in GROWN_INITS:
            raise ValueError(f"grown_init must be one of {GROWN_INITS}, not {grown_init!r}")
        self.update_schedule = make_update_schedule(update)
        self.grown_init = grown_init
        self.grown_init_scale = float(grown_init_scale)
        self.skip_update_on_mask_steps = bool(skip_update_on_mask_steps)
        self.reset_momentum = bool(reset_momentum)
        super().__init__(sparsity, init_method, **kwargs)

    @abstractmethod
    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The new mask of one parameter.

        Args:
            p: The parameter, after the optimizer's update, zero where masked.
            mask: Its bool mask, to be left as it is.
            sparsity: Target fraction of zeros at this step, in [0, 1].

        Returns:
            A bool mask of the same shape.
        """

    def is_update_step(self, step: int) -> bool:
        """Whether masks are updated after optimizer step ``step`` (1 is the first)."""
        return bool(self.update_schedule.is_update_step(step))

    @property
    def needs_dense_gradient(self) -> bool:
        """True if masks will be updated with dense gradients on the step about to be taken."""
        if not (self.uses_dense_gradient or self.grown_init.startswith("gradient")):
            return False
        return not self.autoupdate or self.is_update_step(self.step + 1)

    def dense_gradient(self, p: Tensor) -> Tensor:
        """Gradient of a parameter before masking: summed over micro-batches, averaged over ranks.

        Only known while masks are updated, and only if :attr:`needs_dense_gradient` said so.
        """
        sparse = self._by_param(p)
        if sparse.name not in self._dense:
            raise RuntimeError(f"no dense gradient of {sparse.name!r} was kept for this step")
        return self._dense[sparse.name]

    # ---------------------------------------------------------------------------------- updating

    @torch.no_grad()
    def update(self, optimizer: Optimizer | None = None) -> None:
        """Update every mask now, whatever the update schedule says."""
        self._share_dense_gradients()
        targets = self._levels.targets(self.step, is_update_step=True)
        active = {
            name: sparse
            for name, sparse in self.sparse_params.items()
            if name not in self._without_gradient
        }
        self._set_masks(self.new_masks(active, targets), targets, optimizer)
        distributed.check_equal({n: s.mask for n, s in self.sparse_params.items()})

    def new_masks(
        self, params: Mapping[str, SparseParameter], targets: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """New masks by full name; override this to decide over all tensors together."""
        return {
            name: self.update_mask(sparse.param, sparse.mask, targets[name])
            for name, sparse in params.items()
        }

    def _set_masks(
        self,
        masks: Mapping[str, Tensor],
        targets: Mapping[str, float],
        optimizer: Optimizer | None,
    ) -> None:
        for name, new in masks.items():
            sparse = self.sparse_params[name]
            grown = new.to(sparse.mask.device) & ~sparse.mask
            sparse.target = targets[name]
            sparse.mask = new
            if self.grown_init != "zeros":
                self._start_grown(sparse, grown)
            if self.reset_momentum and optimizer is not None:
                for state in states_like(optimizer, sparse.param, with_dense=True):
                    state.masked_fill_(grown, 0)

    def _start_grown(self, sparse: SparseParameter, grown: Tensor) -> None:
        weight = sparse.param
        if self.grown_init.startswith("gradient"):
            gradient = self.dense_gradient(weight)
            start = -(gradient.sign() if self.grown_init == "gradient_sign" else gradient)
        else:
            source = self.generator(f"{sparse.name}/grown")
            old = weight[sparse.mask & ~grown].float()
            spread = old.pow(2).mean().sqrt() if old.numel() else old.new_zeros(())
            if self.grown_init == "normal":
                draw = torch.randn(weight.shape, generator=source)
            else:
                draw = (torch.rand(weight.shape, generator=source) * 2 - 1) * 3**0.5
            start = draw.to(weight.device) * spread
        start = (start * self.grown_init_scale).to(weight.dtype)
        weight.copy_(torch.where(grown, start, weight))

    def _advance(self, optimizer: Optimizer, autoupdate: bool) -> bool:
        self.step += 1
        due = autoupdate and self.is_update_step(self.step)
        self._without_gradient = {
            name for name, sparse in self.sparse_params.items() if sparse.param.grad is None
        }
        self._give_back_gradients()
        if due:
            self._without_gradient -= self._set_aside_names()
            self.num_updates += 1
            self._run_update(optimizer)
        self._advance_schedules(due)
        return due
