"""What an algorithm has to know of torch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def innermost(optimizer: Any) -> Any:
    """The optimizer that steps, inside wrappers without hooks such as accelerate's."""
    while "_optimizer_step_post_hooks" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


def states_like(
    optimizer: Optimizer, param: Tensor, *, with_dense: bool = False
) -> Iterator[Tensor]:
    """Optimizer states of a parameter's shape, without those marked ``requires_dense``."""
    for state in optimizer.state.get(param, {}).values():
        is_weightlike = isinstance(state, Tensor) and state.dim() and state.shape == param.shape
        if is_weightlike and (with_dense or not getattr(state, "requires_dense", False)):
            yield state


def forget_curvature(optimizer: Optimizer) -> None:
    """Clear the state of LBFGS, whose flat history of all weights does not follow new masks."""
    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.state.clear()


def gradient_scale(optimizer: Optimizer) -> Tensor | None:
    """By what gradients are multiplied in a step of an optimizer that takes part in loss scaling.

    None where they have their own size, as before the step of any other optimizer.
    """
    return getattr(optimizer, "grad_scale", None)


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure among the arguments of ``optimizer.step``, of which the optimizer is the first.

    None where the gradients are there already.
    """
    if callable(closure := kwargs.get("closure")):
        return closure
    return next((arg for arg in args[1:] if callable(arg)), None)


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[[], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``optimizer.step`` with another closure in the place of theirs."""
    theirs = closure_of(args, kwargs)
    return (
        tuple(closure if arg is theirs else arg for arg in args),
        {key: closure if value is theirs else value for key, value in kwargs.items()},
    )


def overflowed(optimizer: Optimizer) -> bool:
    """Whether an optimizer that takes part in loss scaling has skipped its step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
