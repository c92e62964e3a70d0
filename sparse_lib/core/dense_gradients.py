"""The dense gradients that a mask update reads: kept before masking, sized as the optimizer's."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sparse_lib.core import distributed
from sparse_lib.core.parameter import SparseParameter, warn
from sparse_lib.masks import shards


class DenseGradients:
    """Gradients of all weights of sparse parameters, masked ones too, at one step.

    Attributes:
        kept: By full name, the gradient in the size that the backward pass gave it: summed over
            micro-batches.
    """

    def __init__(self, params: Mapping[str, SparseParameter]) -> None:
        self.kept: dict[str, Tensor] = {}
        self._params = params
        self.no_pass = False
        """True if the gradients of the step under way are those of the step before."""
        self._is_past = False  # what is kept is of a step that is over
        self._arriving: dict[str, tuple[Tensor, bool]] = {}
        self._given: dict[str, Tensor] = {}
        self._told_of_combined = False
        self._handles: list[RemovableHandle] = []
        self.factors: dict[str, float | None] = {}
        """By full name, the factor that `measure` found in this step; None where none tells."""
        self._seen: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"params": self._params}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["params"])  # type: ignore[misc]

    def keep_next(self, wanted: bool, *, past: bool) -> None:
        """Keep what the next backward passes give, if wanted, and what is past, if it stays."""
        self.stop()
        if self._is_past and not past:
            self.kept.clear()
        for sparse in self._params.values() if wanted else ():
            if sparse.param.requires_grad:
                sparse.guard.want_dense_gradient(True)
                self._handles.append(self._hook(sparse))

    def end_step(self, autoupdate: bool, *, remember: bool) -> None:
        """Forget what a step has read, and note its gradients to know them again."""
        self._is_past = True
        self._arriving.clear()
        if autoupdate:  # else the user may call update before the next backward pass
            self.kept.clear()
        if remember:
            self._seen = {
                name: (weakref.ref(gradient), gradient._version)
                for name, sparse in self._params.items()
                if (gradient := sparse.param.grad) is not None
            }

    def stop(self) -> None:
        """Keep nothing more; what was kept stays."""
        if self._handles:
            for sparse in self._params.values():
                sparse.guard.want_dense_gradient(False)
                sparse.guard.before_masking = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, sparse: SparseParameter) -> RemovableHandle:
        # Weak: the hooks live on the parameter, which must not keep this alive.
        reference, name = weakref.ref(self), sparse.name
        is_sharded = shards.is_sharded(sparse.param)

        def known() -> DenseGradients | None:
            own = reference()
            return own if own is not None and name in own._params else None

        def keep(gradient: Tensor, goes_on: bool) -> None:
            if (own := known()) is None:
                return
            own._is_past = False
            if is_sharded:
                own._keep_sum(own._params[name], gradient, goes_on)
            elif (arrived := own._arriving.pop(name, None)) is not None:
                own._keep(name, *arrived)

        def note(gradient: Tensor) -> None:
            if (own := known()) is not None:
                own._note(own._params[name], gradient.detach())

        # The guard calls this once a gradient is in ``.grad``, where autograd.grad puts none.
        sparse.guard.before_masking = keep
        if is_sharded:  # fully_shard puts its gradient in place, and autograd never sees it
            return RemovableHandle(OrderedDict())
        return sparse.param.register_hook(note)

    @torch.no_grad()
    def _note(self, sparse: SparseParameter, gradient: Tensor) -> None:
        # Runs before the gradient is added to ``.grad``: what is there tells whether this is the
        # first micro-batch since ``zero_grad`` (a step that overflowed leaves a stale sum).
        accumulated = sparse.param.grad
        goes_on = accumulated is not None and (
            sparse.guard.gradient_is_clean
            or bool((accumulated._values() if accumulated.is_sparse else accumulated).any())
        )
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        # ``.grad`` may take the memory over, which hooks then change.
        self._arriving[sparse.name] = gradient if goes_on else gradient.clone(), goes_on

    @torch.no_grad()
    def _keep(self, name: str, gradient: Tensor, goes_on: bool) -> None:
        so_far = self.kept.get(name)
        if so_far is not None and goes_on:
            so_far.add_(gradient)
        else:
            self.kept[name] = gradient.clone() if goes_on else gradient

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
        """Take the gradients that no backward pass brought: those a user set by hand."""
        grads = {name: sparse.param.grad for name, sparse in self._params.items()}
        left = {name: gradient for name, gradient in grads.items() if gradient is not None}
        self.no_pass = bool(left) and all(self._is_stale(*item) for item in left.items())
        self._given.clear()
        taken = self.kept if distributed.world_size() == 1 else self._given
        for name, gradient in left.items():
            sparse = self._params[name]
            if sparse.guard.gradient_is_clean:
                continue
            if name in self.kept:
                self._tell_of_combined(sparse, gradient)
                continue
            if self._is_stale(name, gradient):
                continue
            gradient = gradient.detach()
            if _is_set(gradient, sparse):
                taken[name] = gradient.to_dense() if gradient.is_sparse else gradient.clone()

    def _tell_of_combined(self, sparse: SparseParameter, gradient: Tensor) -> None:
        """Warn, once, where ``.grad`` has its elements in another order than the backward pass.

        Factors and clipping keep the order, and round so, too. At most 2**16 elements are read.
        """
        if self._told_of_combined or distributed.world_size() > 1 or shards.is_sharded(gradient):
            return
        given = _real((gradient.to_dense() if gradient.is_sparse else gradient)[sparse.mask])
        left = _real(self.kept[sparse.name][sparse.mask])
        few = slice(None, None, len(given) // 2**16 + 1)
        steps = given[few][left[few].argsort()].diff()
        if bool((steps < 0).any() and (steps > 0).any()):
            self._told_of_combined = True
            warn(
                f"something changed the gradient of {sparse.name!r} after the backward pass by "
                "more than a factor and clipping; masks grow by what that pass left, since the "
                "change lacks masked weights; to grow by a combination, make it of "
                "torch.autograd.grad's gradients, which are dense, and set .grad"
            )

    def agree(self) -> None:
        """Make the gradients equal on every rank; a collective.

        Where a backward pass of other ranks alone brought one, this rank's is zero: what ``.grad``
        holds there is the mean of the masked gradients, by DistributedDataParallel.
        """
        if distributed.world_size() == 1 or not self._params:
            return
        known = distributed.any_rank([name in self.kept for name in self._params])
        for (name, sparse), there in zip(self._params.items(), known, strict=True):
            if there and name not in self.kept:
                self.kept[name] = torch.zeros_like(sparse.param)
            elif not there and name in self._given:
                self.kept[name] = self._given[name]
        self._given.clear()

    def share(self) -> None:
        """Average over ranks; a collective. Sharded gradients are averages already."""
        for name, sparse in self._params.items():
            if name not in self.kept:
                self.kept[name] = torch.zeros_like(sparse.param)
        shared = [self.kept[name] for name in self._params]
        distributed.average_(kept for kept in shared if not shards.is_sharded(kept))

    def as_optimized(self, sparse: SparseParameter, gradient: Tensor) -> Tensor:
        """A dense gradient, unscaled and clipped as ``.grad`` was before the optimizer saw it."""
        if not self.factors:
            self.measure()
        factor = self.factors.get(sparse.name)
        if factor is None and sparse.param.grad is not None:
            # Loss scales and clipped norms are of all parameters, so another one tells.
            factor = next((known for known in self.factors.values() if known is not None), None)
        return gradient if factor in (None, 1.0) else gradient * factor

    def measure(self, scale: Tensor | None = None) -> None:
        """Compare ``.grad`` with what is kept; a loss scale is not a part of the factors."""
        for name, kept in self.kept.items():
            factor = _factor(self._params[name].param, kept)
            self.factors[name] = (
                factor if factor is None or scale is None else factor / float(scale)
            )

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
    seen = _real(given.to_dense() if given.is_sparse else given).double()
    kept = _real(shards.local(gradient)).double()
    without = (seen == 0) | ~seen.isfinite() | ~kept.isfinite()
    seen, kept = seen.masked_fill(without, 0), kept.masked_fill(without, 0)
    norm = shards.total(kept.pow(2).sum(), group)
    return float(shards.total((seen * kept).sum(), group) / norm) if norm > 0 else None


def _real(tensor: Tensor) -> Tensor:
    """The numbers that a tensor is made of: real and imaginary parts, flat, of a complex one."""
    return torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor
