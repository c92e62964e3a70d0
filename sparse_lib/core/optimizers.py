"""Facts about torch's optimizers that algorithms need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_lib.core.codes import Codes, codes_of, start_of
from sparse_lib.core.parameter import warn
from sparse_lib.masks import shards


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


def parameters(optimizer: Any) -> Iterator[nn.Parameter]:
    """The parameters that an optimizer holds."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def params_of(optimizer: Any) -> set[int]:
    """Ids of the parameters that an optimizer holds."""
    return set(map(id, parameters(optimizer)))


def states_like(
    optimizer: Optimizer, param: Tensor, *, with_dense: bool = False
) -> Iterator[Tensor | Codes]:
    """Optimizer states of a parameter's shape, without those marked ``requires_dense``.

    Of a state that stacks several of that shape along a new first dimension, each. Those of
    optimizers that this one holds count, too, as of ZeroRedundancyOptimizer's part.

    Warns:
        UserWarning: Once per optimizer, if a state is coded in a way that is not known, in a basis
            that the optimizer turns, or has values of the weights in another shape; it is left out.
    """
    for inner in _held_by(optimizer):
        yield from states_like(inner, param, with_dense=with_dense)
    states = _flat(optimizer.state.get(param, {}))
    of_dimensions = {key for key, s in states.items() if _is_of_a_dimension(optimizer, key, s)}
    is_rotated = any(_is_orthogonal(states[key]) for key in of_dimensions)
    for key, whole in states.items():
        if not isinstance(whole, Tensor) or whole.dtype is torch.bool:  # a mask, as SPAM's
            continue
        if getattr(whole, "requires_dense", False) > with_dense:
            continue
        is_stack = whole.dim() > param.dim() > 0 and whole.shape[1:] == param.shape
        for state in whole if is_stack else (whole,):  # AdEMAMix of bitsandbytes stacks two
            if state.shape != param.shape or key in of_dimensions:
                found, how = None, f"in another shape, {tuple(state.shape)}"
                if not _is_of_weights(optimizer, key, state, param):
                    continue
            elif state.dim():
                is_coded = state.dtype is torch.uint8 or hasattr(state, "codes")
                found = codes_of(key, state, states) if is_coded else state
                how = f"as {type(state).__name__} of {state.dtype}"
                if not is_coded and (start := start_of(optimizer, key, param)):
                    found = Codes(shards.local(state), start)
            else:
                continue
            if found is not None and not is_rotated:
                yield found
            elif not getattr(optimizer, _TOLD, False):
                setattr(optimizer, _TOLD, True)
                warn(
                    f"{type(optimizer).__name__} keeps {key!r} "
                    f"{'in a basis of its own' if is_rotated else how}, "
                    "which cannot be masked: grown weights begin with what it holds"
                )


def _held_by(optimizer: Optimizer) -> list[Optimizer]:
    """Optimizers among the attributes of one, looked up again where it has others."""
    own = vars(optimizer)
    if own.get(_HELD, (0,))[0] != len(own):
        lists = [held if isinstance(held, list | tuple) else [held] for held in own.values()]
        found = [inner for held in lists for inner in held if isinstance(inner, Optimizer)]
        own[_HELD] = (len(own) + (_HELD not in own), found)
    return own[_HELD][1]


def _flat(states: Mapping[str, Any]) -> Mapping[str, Any]:
    """States by name, and what dicts, lists and objects hold: AggMo's, SOAP's, GaLore's."""
    inside = {key: _inside(held) for key, held in states.items() if not isinstance(held, Tensor)}
    if not any(inside.values()):
        return states
    found: dict[str, Any] = {}
    for key, held in states.items():
        flat = _flat(inside.get(key, {}))
        found |= {f"{key}.{name}": entry for name, entry in flat.items()} or {key: held}
    return found


def _inside(held: Any) -> dict[Any, Any]:
    """The entries of a dict or sequence, or the tensors and lists of an object; else nothing."""
    if isinstance(held, dict | list | tuple | deque):
        return held if isinstance(held, dict) else dict(enumerate(held))
    own = getattr(held, "__dict__", {})
    return {name: entry for name, entry in own.items() if isinstance(entry, Tensor | list)}


def _is_plain(state: Any) -> bool:
    return type(state) in (Tensor, nn.Parameter) and state.is_floating_point()


def _is_square(state: Any, *, stacked: bool = False) -> bool:
    """Whether something is a square matrix of plain floats, or a batch of one, or of several."""
    if not _is_plain(state) or state.dim() < 2:
        return False
    is_one = stacked or state.shape[:-2].numel() == 1
    return is_one and state.shape[-2] == state.shape[-1] > 1


def _is_of_a_dimension(optimizer: Optimizer, key: str, state: Any) -> bool:
    """Whether states belong to pairs of rows or columns, as Shampoo's for each dimension do.

    Such a state has the shape of a square weight. Weights that are not square tell; where there
    are none, the states of all weights are symmetric, triangular (PSGD) or orthogonal (Conda).
    Orthogonal ones (SOAP) turn the optimizer's other states.
    """
    known: dict[str, bool] = optimizer.__dict__.setdefault(_OF_DIMENSIONS, {})
    if not _is_square(state, stacked=True):
        return known.get(key, False)
    if key not in known and not state.any():
        return False  # of zeros there is nothing to tell, nor to leave alone
    if key not in known:
        flat = [(p, _flat(s)) for p, s in optimizer.state.items() if isinstance(p, Tensor)]
        states = [(p, s[key]) for p, s in flat if isinstance(s.get(key), Tensor)]
        if others := [(p, s) for p, s in states if not _is_square(p)]:
            known[key] = any(
                _is_square(s, stacked=True) and p.shape not in (s.shape, s.shape[1:])
                for p, s in others
            )
        elif all(_is_factor(s) for _, s in states):
            return True
        else:
            known[key] = False
    return known[key]


def _is_of_weights(optimizer: Optimizer, key: str, state: Tensor, param: Tensor) -> bool:
    """Whether a state of another shape has values of the weights: in blocks, or of a lower rank.

    Those for rows, columns and the like (Adafactor) and factors (Shampoo) are none.
    """
    sizes = [size for size in state.shape if size > 1]
    is_scale = len(sizes) < 2 or key.startswith("absmax")  # of blocks of codes
    if is_scale or not _is_plain(state) or getattr(optimizer, _TOLD, False):
        return False
    known: dict[Any, bool] = optimizer.__dict__.setdefault(_OF_WEIGHTS, {})
    place = key, state.shape, param.shape
    if place not in known:
        rest = iter(param.shape)
        is_sum = all(size in rest for size in sizes)
        known[place] = not (is_sum or _is_square(state, stacked=True) and _is_factor(state))
    return known[place]


def _is_factor(state: Tensor) -> bool:
    """Whether matrices are symmetric, or orthogonal, or triangular with a full diagonal."""
    diagonal = state.diagonal(dim1=-2, dim2=-1)
    differences, rest = (state - state.mT).abs().max(), state - diagonal.diag_embed()
    if bool(differences <= 1e-4 * rest.abs().max()) or _is_orthogonal(state):
        return True
    return bool(diagonal.all()) and not (state.tril(-1).any() and state.triu(1).any())


def _is_orthogonal(state: Tensor) -> bool:
    """Whether the first columns of matrices are orthonormal, and others than those of the unit."""
    columns = state[..., :8].float()
    unit = torch.eye(*columns.shape[-2:], device=state.device)
    errors = (columns.mT @ columns - unit[: columns.shape[-1]]).abs().max()
    return bool(errors < 0.05) and bool((columns - unit).abs().max() > 0.05)


_OF_DIMENSIONS = "_sparse_lib_states_of_dimensions"
_OF_WEIGHTS = "_sparse_lib_states_of_weights"
_HELD = "_sparse_lib_optimizers_held"
_TOLD = "_sparse_lib_told_of_codes"


def gradient_scale(optimizer: Optimizer) -> Tensor | None:
    """By what gradients are multiplied where an optimizer takes part in loss scaling, else None."""
    return getattr(optimizer, "grad_scale", None)


def rising(optimizer: Any) -> set[int]:
    """Ids of the parameters that an optimizer moves up their gradient."""
    groups = (group for group in optimizer.param_groups if group.get("maximize"))
    return {id(param) for group in groups for param in group["params"]}


def only_makes_states(optimizer: Optimizer) -> bool:
    """Whether a step is that of torch's distributed checkpoints, which trains nothing."""
    if optimizer.state or any(float(group.get("lr", 1)) for group in optimizer.param_groups):
        return False
    trained = [param.grad for param in parameters(optimizer) if param.requires_grad]
    return not any(gradient is None or bool(gradient.any()) for gradient in trained)


def with_closure(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wrap: Callable[[Callable[[], Any]], Callable[[], Any]],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``optimizer.step`` with its closure wrapped; None if there is no closure."""
    given = (kwargs.get("closure"), *args[1:])
    if (theirs := next((value for value in given if callable(value)), None)) is None:
        return None
    ours = wrap(theirs)
    return (
        tuple(ours if value is theirs else value for value in args),
        {key: ours if value is theirs else value for key, value in kwargs.items()},
    )


def overflowed(optimizer: Optimizer) -> bool:
    """Whether an optimizer that takes part in loss scaling has skipped its step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
