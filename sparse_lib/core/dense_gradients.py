"""The dense gradients that a mask update reads: kept before masking, sized as the optimizer's."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.core import distributed
from sparse_lib.core.optimizers import gradient_scale
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks import shards


class DenseGradients:
    """What autograd gave for all weights of sparse parameters, masked ones too, at one step.

    Args:
        params: The algorithm's sparse parameters by full name; the mapping may change later.

    Attributes:
        kept: By full name, the gradient in the size that the backward pass gave it: summed over
            micro-batches.
    """

    def __init__(self, params: Mapping[str, SparseParameter]) -> None:
        self.kept: dict[str, Tensor] = {}
        self._params = params
        self._handles: list[Any] = []
        self._factors: dict[str, float | None] = {}  # of gradients that the algorithm has changed
        self._seen: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    # ------------------------------------------------------------------------------ keeping them

    def capture(self) -> None:
        """Keep what the next backward passes give, until :meth:`stop`."""
        for sparse in self._params.values():
            if sparse.param.requires_grad:
                sparse.guard.want_dense_gradient(True)
                self._handles.append(self._hook(sparse))

    @property
    def is_capturing(self) -> bool:
        """True between :meth:`capture` and :meth:`stop`."""
        return bool(self._handles)

    def stop(self) -> None:
        """Keep nothing more; what was kept stays."""
        if self._handles:
            for sparse in self._params.values():
                sparse.guard.want_dense_gradient(False)
                sparse.guard.before_masking = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, sparse: SparseParameter) -> Any:
        # Weak: the hook lives on the parameter, which must not keep this alive.
        reference, name = weakref.ref(self), sparse.name
        if shards.is_sharded(sparse.param):
            # Autograd never sees a sharded parameter: fully_shard puts its gradient in place.
            def keep_sum(gradient: Tensor, goes_on: bool) -> None:
                own = reference()
                if own is not None and name in own._params:
                    own._keep_sum(own._params[name], gradient, goes_on)

            sparse.guard.before_masking = keep_sum
            return RemovableHandle(OrderedDict())

        def keep(gradient: Tensor) -> None:
            own = reference()
            if own is not None and name in own._params:
                gradient = gradient.detach()
                gradient = gradient.to_dense() if gradient.is_sparse else gradient
                own._keep(own._params[name], gradient)

        return sparse.param.register_hook(keep)

    @torch.no_grad()
    def _keep(self, sparse: SparseParameter, gradient: Tensor) -> None:
        # Runs before the gradient is added to ``.grad``: what is there tells whether this is the
        # first micro-batch since ``zero_grad`` (a step that overflowed leaves a stale sum).
        so_far = self.kept.get(sparse.name)
        accumulated = sparse.param.grad
        goes_on = accumulated is not None and (
            sparse.guard.gradient_is_clean
            or bool((accumulated._values() if accumulated.is_sparse else accumulated).any())
        )
        if so_far is not None and goes_on:
            so_far.add_(gradient)
        else:
            self.kept[sparse.name] = gradient.clone()

    @torch.no_grad()
    def _keep_sum(self, sparse: SparseParameter, gradient: Tensor, goes_on: bool) -> None:
        """Keep a sharded gradient that holds what is there already, masked, and a new one."""
        so_far = self.kept.get(sparse.name)
        if so_far is not None and goes_on:
            mine, mask = shards.local(so_far), shards.local(sparse.mask)
            old = mine.masked_fill(mask, 0)
            mine.copy_(shards.local(gradient)).add_(old)
        else:
            self.kept[sparse.name] = gradient.detach().clone()

    def take_given(self) -> None:
        """Keep the gradients that no backward pass brought: those a user set by hand."""
        for name, sparse in self._params.items():
            gradient = sparse.param.grad
            if name in self.kept or gradient is None or sparse.guard.gradient_is_clean:
                continue
            if self._is_stale(name, gradient):
                continue
            gradient = gradient.detach()
            if _is_set(gradient, sparse):
                self.kept[name] = gradient.to_dense() if gradient.is_sparse else gradient.clone()

    def share(self) -> None:
        """Average over ranks; a collective. Sharded gradients are averages already."""
        for name, sparse in self._params.items():
            if name not in self.kept:
                self.kept[name] = torch.zeros_like(sparse.param)
        shared = [self.kept[name] for name in self._params]
        distributed.average_(kept for kept in shared if not shards.is_sharded(kept))

    # --------------------------------------------------------------------- as the optimizer's

    def as_optimized(self, sparse: SparseParameter, gradient: Tensor) -> Tensor:
        """A dense gradient, unscaled and clipped as ``.grad`` was before the optimizer saw it."""
        if sparse.name in self._factors:
            factor = self._factors[sparse.name]
        else:
            factor = _factor(sparse.param, gradient)
        if factor is None and sparse.param.grad is not None:
            factor = self._factor_of_others()
        return gradient if factor in (None, 1.0) else gradient * factor

    def measure(self, optimizer: Optimizer) -> None:
        """Compare gradients that the algorithm is about to change with those kept."""
        scale = gradient_scale(optimizer)
        for name, sparse in self._params.items():
            kept = self.kept.get(name)
            if kept is not None and sparse.param.grad is not None:
                factor = _factor(sparse.param, kept)
                if factor is not None and scale is not None:
                    factor /= float(scale)
                self._factors[name] = factor

    def forget_measured(self) -> None:
        """What :meth:`measure` found is of an earlier step."""
        self._factors.clear()

    def _factor_of_others(self) -> float | None:
        """That of the first parameter which tells; loss scales and clipped norms are of all."""
        if self._factors:
            return next((known for known in self._factors.values() if known is not None), None)
        for name, sparse in self._params.items():
            if (kept := self.kept.get(name)) is not None:
                if (factor := _factor(sparse.param, kept)) is not None:
                    return factor
        return None

    # ------------------------------------------------------------------------- from step to step

    def remember(self) -> None:
        """Note the gradients that a step has seen, to know them again at the next one."""
        self._seen = {
            name: (weakref.ref(gradient), gradient._version)
            for name, sparse in self._params.items()
            if (gradient := sparse.param.grad) is not None
        }

    def no_pass_came(self) -> bool:
        """Whether there are gradients, but all of them those of the step before."""
        given = {name: sparse.param.grad for name, sparse in self._params.items()}
        left = {name: gradient for name, gradient in given.items() if gradient is not None}
        return bool(left) and all(self._is_stale(*item) for item in left.items())

    def _is_stale(self, name: str, gradient: Tensor) -> bool:
        """Whether a gradient is the one that the step before saw, unchanged."""
        seen, version = self._seen.get(name, (None, -1))
        return seen is not None and seen() is gradient and version == gradient._version


def _is_set(gradient: Tensor, sparse: SparseParameter) -> bool:
    """False for what ``zero_grad(set_to_none=False)`` leaves where no backward pass came."""
    given = shards.local(gradient)
    given = given._values() if given.is_sparse else given
    return bool(shards.total(given.count_nonzero(), shards.group_of(sparse.param)))


def _factor(weight: Tensor, gradient: Tensor) -> float | None:
    """By what ``.grad`` was multiplied since the backward pass that left a dense gradient.

    None where no present weight has a gradient to tell it by.
    """
    if weight.grad is None:
        return None
    given, group = shards.local(weight.grad), shards.group_of(weight)
    seen = (given.to_dense() if given.is_sparse else given).double()
    kept = shards.local(gradient).double()
    without = (seen == 0) | ~seen.isfinite() | ~kept.isfinite()
    seen, kept = seen.masked_fill(without, 0), kept.masked_fill(without, 0)
    norm = shards.total(kept.pow(2).sum(), group)
    return float(shards.total((seen * kept).sum(), group) / norm) if norm > 0 else None
