"""Load weights and masks into a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.checkpoint.names import State, checked, masks_of, namer
from sparse_lib.checkpoint.states import as_mask, clear, split_known_state
from sparse_lib.checks import closest
from sparse_lib.core.guard import guards
from sparse_lib.core.parameter import unwrap


@torch.no_grad()
def load_checkpoint(
    model: nn.Module, state: Mapping[str, Any], *, strict: bool = True
) -> dict[str, Tensor]:
    """Load weights and masks of any form that `split_state` knows into a model, in place.

    Masks become ``<name>_mask`` buffers, which an algorithm applied later keeps. If ``strict``,
    names must match exactly; else a mask that the model has and the checkpoint lacks is filled with
    ones.

    Returns:
        Full name to the masks that were loaded.

    Raises:
        TypeError: If the checkpoint is no mapping, or the model no module.
        ValueError: If names, shapes or kinds of numbers do not match, or the checkpoint is none
            that `split_state` understands; the model is as it was then.
    """
    target = unwrap(checked(model))
    plain, owners = namer(target), _owners(target)
    weights, masks = split_known_state(state, {plain(name) for name in target.state_dict()}, owners)
    owned = masks_of(target)
    if strict and owned and set(owned) != set(masks):
        differing = sorted(set(owned) ^ set(masks))
        raise ValueError(f"model and checkpoint differ in which weights are masked: {differing}")
    full = {**weights, **{f"{name}_mask": mask for name, mask in masks.items()}}
    for name in set(owned) - set(masks):
        full[f"{name}_mask"] = torch.ones_like(owned[name])
    for name in masks:
        if name not in owners:
            raise ValueError(f"the checkpoint masks {name!r}, which the model does not have")
    _check_fit(target, full, strict=strict)
    for name, mask in masks.items():
        _register_mask(*owners[name], mask)
    names = {plain(name): name for name in target.state_dict()}
    try:
        target.load_state_dict({names.get(n, n): t for n, t in full.items()}, strict=strict)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the checkpoint does not fit the model: {reason}") from None
    return masks


@torch.no_grad()
def load_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put masks on a model by name, in place; masked weights become zero.

    An algorithm that is applied later keeps them.

    Args:
        model: Model, wrapped or not, with or without masks.
        masks: Full name of a weight, or of its buffer ``<name>_mask``, to a mask of the weight's
            shape, bool or with values 0 and 1; as a file of masks alone has them.

    Returns:
        Full name of each weight to its mask.

    Raises:
        TypeError: If the masks are no mapping, or the model no module.
        ValueError: If a name is of no weight of the model, or a mask has another shape or values
            besides 0 and 1; the model is as it was then.

    >>> layer = nn.Linear(2, 2)
    >>> _ = load_masks(layer, {"weight_mask": torch.eye(2)})
    >>> bool(layer.weight[0, 1] == 0), layer.weight_mask.tolist()
    (True, [[True, False], [False, True]])
    """
    target = unwrap(checked(model))
    if not isinstance(masks, Mapping):
        raise TypeError(f"masks must be a mapping of names to tensors, not {masks!r:.80}")
    owners = _owners(target)
    found: dict[str, Tensor] = {}
    for key, mask in masks.items():
        name = key if key in owners else str(key).removesuffix("_mask")
        if name not in owners:
            raise ValueError(f"the model has no weight {name!r}; {closest(name, owners)}")
        module, leaf = owners[name]
        shape = module.get_parameter(leaf).shape
        if not isinstance(mask, Tensor) or mask.shape != shape:
            raise ValueError(f"the mask of {name!r} must be a tensor of shape {tuple(shape)}")
        found[name] = as_mask(name, mask)
    for name, mask in found.items():
        module, leaf = owners[name]
        _register_mask(module, leaf, mask)
        module.get_buffer(f"{leaf}_mask").copy_(mask)
        if (guard := guards(module).get(leaf)) is not None:
            guard._origin = None  # a copy's, whose mask it would take back
        clear(module.get_parameter(leaf), ~mask)
    return found


@torch.no_grad()
def import_torch_prune(model: nn.Module) -> dict[str, Tensor]:
    """Take over what ``torch.nn.utils.prune`` did to a model, in place.

    ``<name>_orig`` becomes the parameter ``<name>`` again (the same object, so an optimizer keeps
    it), and ``<name>_mask`` becomes a boolean buffer that an algorithm applied later keeps.
    ValueError if it has values besides 0 and 1; the model is as it was then.

    Returns:
        Full parameter name to mask; empty if nothing was pruned.
    """
    from torch.nn.utils.prune import BasePruningMethod

    found, plain = [], namer(checked(model))
    for path, module in model.named_modules():
        for key, hook in module._forward_pre_hooks.items():
            if isinstance(hook, BasePruningMethod):
                name = hook._tensor_name
                full_name = plain(f"{path}.{name}" if path else name)
                mask = as_mask(full_name, module.get_buffer(f"{name}_mask"))
                found.append((full_name, module, key, name, mask))
    for _, module, key, name, mask in found:
        del module._forward_pre_hooks[key], module._buffers[f"{name}_mask"]
        param = module.get_parameter(f"{name}_orig")
        del module._parameters[f"{name}_orig"]
        module.__dict__.pop(name, None)
        clear(param, ~mask)
        module.register_parameter(name, param)
        module.register_buffer(f"{name}_mask", mask)
    return {full_name: mask for full_name, *_, mask in found}


def _check_fit(model: nn.Module, state: State, *, strict: bool) -> None:
    """Refuse tensors of other shapes and, if strict, other names, before anything is loaded."""
    plain = namer(model)
    own = {plain(n): t for n, t in model.state_dict().items() if torch.is_tensor(t)}
    no_fit = "the checkpoint does not fit the model:"
    for name, tensor in state.items():
        wanted = own.get(name, tensor)
        if wanted.shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)}, the model's {tuple(wanted.shape)}"
            raise ValueError(f"{no_fit} {name!r} has shape {sizes}")
        if _number(wanted) != _number(tensor):
            types = f"{tensor.dtype}, the model's {wanted.dtype}"
            raise ValueError(f"{no_fit} {name!r} is {types}")
    missing = sorted(own.keys() - state.keys())
    unknown = sorted(state.keys() - own.keys() - {f"{name}_mask" for name in own})
    if strict and (missing or unknown):
        both = f"lacks {missing or 'nothing'} and has {unknown or 'nothing'} besides"
        alone = all(name.endswith("_mask") for name in state)
        cure = "; sparse_lib.checkpoint.load_masks takes masks alone" if alone else ""
        raise ValueError(f"{no_fit} it {both}{cure}")


def _number(tensor: Tensor) -> str:
    """The kind of number that a tensor holds; loading casts within a kind only."""
    if tensor.is_floating_point():
        return "real"
    return "complex" if tensor.is_complex() else "bool" if tensor.dtype == torch.bool else "integer"


def _register_mask(module: nn.Module, name: str, mask: Tensor) -> None:
    if module._buffers.get(f"{name}_mask") is None:
        module.register_buffer(f"{name}_mask", mask.to(module.get_parameter(name).device))


def _owners(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """By a parameter's full name, the module that owns it and its name there; tied ones by each."""
    plain = namer(model)
    return {
        plain(f"{path}.{leaf}".lstrip(".")): (module, leaf)
        for path, module in model.named_modules(remove_duplicate=False)
        for leaf, param in module._parameters.items()
        if param is not None
    }
