"""The tie between an algorithm and the optimizer that drives it, and the order in a step.

Order of events in ``optimizer.step()``: gradients are masked (they were already, in the backward
pass) -> the optimizer updates -> weights and states are masked -> ``step += 1`` -> the algorithm
updates its masks, if due, from the *updated* weights -> weights and states obey the new masks.
So weights and states are masked once in an ordinary step, and once more where a mask changes.
Optimizer step n is therefore schedule step n; step 0 is initialisation.

An algorithm may say otherwise. With ``masks_gradients = False`` the optimizer gets dense gradients
and writes to every weight; masks are updated from what it wrote, and weights are masked last. With
``masks_states = False`` optimizer states are left alone. ``prepare`` and ``project`` are called
right before and right after the optimizer's own update.

With ``optimizer.step(closure)`` the gradients come during the step. What else happens before the
optimizer's update then happens after each evaluation of the closure. Each evaluation has masked
weights; where all weights are trained, what an optimizer wrote is put aside meanwhile. So
optimizers that evaluate once end with the bits of the plain loop.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.core.optimizers import closure_of, overflowed, with_closure
from sparse_lib.core.parameter import SparseParameter

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm


class Connection:
    """An algorithm's part in an optimizer's steps, outside of what ``torch.compile`` traces.

    The optimizer keeps the algorithm alive by its hooks; this keeps neither.

    Args:
        algorithm: What acts in the steps; for a Group, its members do.
        optimizer: A torch optimizer.

    Raises:
        TypeError: If the optimizer has no step hooks, as a wrapper of one has not.
    """

    def __init__(self, algorithm: SparsityAlgorithm, optimizer: Optimizer) -> None:
        self._algorithm = weakref.ref(algorithm)
        self._optimizer = weakref.ref(optimizer)
        self._not_held: set[int] = set()  # ids of parameters that the optimizer does not have
        self._handles: list[Any] = []
        mine = self._algorithm

        def loaded(_: Optimizer) -> None:
            if (algorithm := mine()) is not None:
                algorithm._after_load()

        before, after = (
            torch.compiler.disable(partial(f, algorithm)) for f in (_open_step, _after_step)
        )
        try:
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))
            self._handles.append(optimizer.register_load_state_dict_post_hook(loaded))
        except AttributeError as error:
            self.remove()
            name = type(optimizer).__name__
            raise TypeError(f"apply takes a whole torch optimizer; {name}: {error}") from None

    @property
    def optimizer(self) -> Optimizer | None:
        """What drives the algorithm; None once it is gone."""
        return self._optimizer()

    def is_of(self, algorithm: SparsityAlgorithm) -> bool:
        """False for the members of a Group, which is what was applied to the optimizer."""
        return self._algorithm() is algorithm

    def remove(self) -> None:
        """Take no part in further steps."""
        for handle in self._handles:
            handle.remove()

    def holds(self, param: Tensor) -> bool:
        """False for a sparse parameter that :meth:`find_not_held` found last."""
        return id(param) not in self._not_held

    def find_not_held(self, params: Mapping[str, SparseParameter]) -> list[str]:
        """Names of those trainable sparse parameters that the optimizer does not have."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        held = {id(param) for group in optimizer.param_groups for param in group["params"]}
        lacking = {
            name: id(sparse.param)
            for name, sparse in params.items()
            if sparse.param.requires_grad and id(sparse.param) not in held
        }
        self._not_held = set(lacking.values())
        return list(lacking)

    def look_again(self, params: Mapping[str, SparseParameter]) -> None:
        """See whether the optimizer was given what it lacked."""
        if self._not_held:
            self.find_not_held(params)


def _open_step(algorithm: SparsityAlgorithm, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Get gradients ready for the optimizer: now, or each time that a closure has made them."""
    if algorithm._connection is not None:
        algorithm._connection.look_again(algorithm.sparse_params)
    algorithm._check_step(optimizer)
    algorithm._check_ties()  # of a group's members together
    with torch.no_grad():
        for actor in algorithm._actors():
            actor._place_hidden()
    closure = closure_of(args, kwargs)
    if closure is None:
        for actor in algorithm._actors():
            actor._before_step(optimizer)
        return None
    show, take = (torch.compiler.disable(f) for f in (_before_evaluation, _after_evaluation))

    def evaluate() -> Any:
        written = show(algorithm)
        loss = closure()
        take(algorithm, optimizer, written)
        return loss

    return with_closure(args, kwargs, evaluate)


@torch.no_grad()
def _before_evaluation(algorithm: SparsityAlgorithm) -> list[dict[str, Tensor]]:
    return [actor._show_sparse() for actor in algorithm._actors()]


@torch.no_grad()
def _after_evaluation(
    algorithm: SparsityAlgorithm, optimizer: Optimizer, written: list[dict[str, Tensor]]
) -> None:
    for actor, own in zip(algorithm._actors(), written, strict=True):
        actor._put_back(own)
    for actor in algorithm._actors():
        actor._before_step(optimizer)


@torch.no_grad()
def _after_step(algorithm: SparsityAlgorithm, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    algorithm._restore_gradients()
    algorithm._settle(optimizer, written_everywhere=False)
    skipped = overflowed(optimizer)
    if not skipped:
        algorithm._advance(optimizer, algorithm.autoupdate)
    algorithm._settle(optimizer, written_everywhere=True)
    if not skipped:
        algorithm._report()
        algorithm._prepare_next_step()
    for sparse in algorithm.sparse_params.values():
        sparse.guard.forget_gradient()
        sparse.guard.is_left()
