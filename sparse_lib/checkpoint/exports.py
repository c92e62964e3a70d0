"""Make a model dense, and export its sparse weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparse_lib.checkpoint.names import State, masked, masks_of, namer
from sparse_lib.checkpoint.states import as_bytes, clear, to_bits
from sparse_lib.core.guard import all_guards, mask_name, watch_readers
from sparse_lib.core.mistakes import warn_of_unreached
from sparse_lib.core.parameter import warn


@torch.no_grad()
def finalize(model: nn.Module) -> dict[str, Tensor]:
    """Remove masks and their enforcement in place; masked weights stay as zeros.

    The counterpart of ``torch.nn.utils.prune.remove`` for a whole model: names and tensors are
    those of the dense model again, and further training is dense. Algorithms let go of these
    parameters, so their optimizer may be kept.

    Args:
        model: Model, or a part of one, with or without masks.

    Returns:
        Full parameter name to the mask that was removed.

    Warns:
        UserWarning: If something wrote to masked weights, which lose those values now, or the
            training ended before its masks had reached their targets.
    """
    masks = masks_of(model)
    owned = all_guards(model)
    for owner in {guard.driver.owner for guard in owned if guard.driver is not None}:
        for member in owner.algorithms if owner is not None else ():
            warn_of_unreached(member, member.step)
    averaged: set[int] = set()  # of weights under several masks, of which the last one counts
    for guard in owned:
        if guard.mask_was_written:
            averaged.add(id(guard.param))
        if guard.driver is not None:
            guard.driver.detach(model)
        guard.remove()
    watch_readers(model, watch=False)
    written = []
    for path, module, name, mask in list(masked(model)):
        param = module.get_parameter(name)
        delattr(module, mask_name(name))
        wrote = (param != 0) & ~mask & ~param.isnan()
        if id(param) not in averaged and bool(wrote.any()):
            written.append(f"{path}.{name}" if path else name)
        clear(param, ~mask)
    if written:
        warn(
            f"{len(written)} parameters, such as {written[0]!r}, had other values than zero where "
            "they are masked, which are zero now; something wrote to them, as merging adapters "
            "does without sparse_lib.integrations.peft.keep_zeros"
        )
    return masks


@torch.no_grad()
def densify(model: nn.Module) -> nn.Module:
    """Dense fine-tuning from sparse weights, in place: what was masked may grow, from 0.

    Sparse pre-training and dense fine-tuning (SPDF, Thangarasa et al. 2023, section 2). NaN, the
    sideband's mark of an absent weight, becomes 0 too. The optimizer may be kept, with its states
    (zero where the mask was), or replaced by a new one.

    Args:
        model: Model with masks, or with NaN in their place.

    Returns:
        The model.
    """
    finalize(model)
    for param in model.parameters():
        if param.is_floating_point():
            clear(param, param.isnan())
    return model


@torch.no_grad()
def export_dense(model: nn.Module) -> State:
    """State of the dense model: masked weights are zero, masks are left out. Copies."""
    masks, plain = masks_of(model), namer(model)
    hidden = {f"{name}_mask" for name in masks}
    state = {}
    for full_name, tensor in model.state_dict().items():
        name = plain(full_name)
        if name in hidden:
            continue
        state[name] = tensor.detach().clone()
        if name in masks:
            clear(state[name], ~masks[name])
    return state


@torch.no_grad()
def export_nan(model: nn.Module) -> State:
    """Sideband form: as `export_dense`, with NaN where the mask is zero.

    Raises:
        ValueError: If a present weight is NaN already, since it would be lost.
    """
    state = export_dense(model)
    for name, mask in masks_of(model).items():
        if bool((state[name].isnan() & mask).any()):
            raise ValueError(f"{name!r} has a present weight that is NaN")
        absent, nan = (~mask).to(state[name].device), torch.tensor(math.nan).to(state[name].dtype)
        as_bytes(state[name]).masked_fill_(absent, as_bytes(nan))
    return state


@torch.no_grad()
def export_bitmask(model: nn.Module) -> State:
    """As `export_dense`, with the values of each masked weight and its mask as bits.

    A weight ``<name>`` becomes ``<name>.compressed`` (the present values in row-major order, also
    those that are zero), ``<name>.bitmask`` (uint8, eight entries a byte from the lowest bit) and
    ``<name>.shape`` (int64). At a sparsity s that is 1 - s + 1/32 of a float32 weight.
    """
    state = export_dense(model)
    for name, mask in masks_of(model).items():
        weight = state.pop(name)
        state[f"{name}.compressed"] = as_bytes(weight)[mask].view(weight.dtype)
        state[f"{name}.bitmask"] = to_bits(mask)
        state[f"{name}.shape"] = torch.tensor(mask.shape, dtype=torch.int64)
    return state


def export_with_masks(model: nn.Module) -> State:
    """As `export_dense`, with ``<name>.bitmask``, the mask as bits, beside each weight."""
    masks = {f"{name}.bitmask": to_bits(mask) for name, mask in masks_of(model).items()}
    return {**export_dense(model), **masks}
