"""What an algorithm has to know of torch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.core.codes import Codes, codes_of
from sparse_lib.core.parameter import warn


def innermost(optimizer: Any) -> Any:
    """The optimizer that steps, inside wrappers without hooks such as accelerate's."""
    while "_optimizer_step_post_hooks" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


def stepping(optimizer: Any) -> Any:
    """The optimizer whose steps train the weights, inside wrappers that have hooks, too.

    A wrapper such as SAM or Lookahead is an optimizer that holds another one of the same
    parameters, and calls its ``step``.
    """
    optimizer = innermost(optimizer)
    own = params_of(optimizer)
    for inner in list(vars(optimizer).values()):
        if isinstance(inner, Optimizer) and inner is not optimizer and params_of(inner) == own:
            return stepping(inner)
    return optimizer


def params_of(optimizer: Any) -> set[int]:
    """Ids of the parameters that an optimizer holds."""
    groups = getattr(optimizer, "param_groups", ())
    return {id(param) for group in groups for param in group["params"]}


def states_like(
    optimizer: Optimizer, param: Tensor, *, with_dense: bool = False
) -> Iterator[Tensor | Codes]:
    """Optimizer states of a parameter's shape, without those marked ``requires_dense``.

    Of a state that stacks several of that shape along a new first dimension, each.

    Warns:
        UserWarning: Once per optimizer, if a state of that shape is coded in a way that is not
            known; it is left out.
    """
    states = optimizer.state.get(param, {})
    for key, whole in states.items():
        if not isinstance(whole, Tensor) or getattr(whole, "requires_dense", False) > with_dense:
            continue
        if _is_of_a_dimension(optimizer, key, whole):
            continue
        is_stack = whole.dim() > param.dim() > 0 and whole.shape[1:] == param.shape
        for state in whole if is_stack else (whole,):  # AdEMAMix of bitsandbytes stacks two
            if not state.dim() or state.shape != param.shape:
                continue
            if state.dtype is not torch.uint8 and not hasattr(state, "codes"):
                yield state
            elif (found := codes_of(key, state, states)) is not None:
                yield found
            elif not getattr(optimizer, _TOLD, False):
                setattr(optimizer, _TOLD, True)
                warn(
                    f"{type(optimizer).__name__} keeps {key!r} as {type(state).__name__} of "
                    f"{state.dtype}, which cannot be masked: grown weights begin with what it holds"
                )


def _is_of_a_dimension(optimizer: Optimizer, key: str, state: Tensor) -> bool:
    """Whether a state is a symmetric matrix, as Shampoo keeps one for each dimension of a weight.

    It has the shape of a square weight, but its elements belong to pairs of rows or columns.
    """
    is_square = state.dim() == 2 and state.shape[0] == state.shape[1] > 1
    if not is_square or type(state) is not Tensor or not state.is_floating_point():
        return False
    known: dict[str, bool] = optimizer.__dict__.setdefault(_SYMMETRIC, {})
    if key not in known:
        differences = (state - state[0, -1]).fill_diagonal_(0)
        if not bool(differences.any()):  # not written yet: a diagonal, or one value everywhere
            return False
        least = 1e-4 * float(differences.abs().max())
        known[key] = torch.allclose(differences, differences.T, rtol=0, atol=least)
    return known[key]


_SYMMETRIC = "_sparse_lib_symmetric_states"
_TOLD = "_sparse_lib_told_of_codes"


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
