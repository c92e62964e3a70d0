"""Checkpoints: make a model dense, export its sparse weights, read other libraries' masks.

Masks are boolean buffers ``<name>_mask`` beside their parameter, so a model's own ``state_dict``
needs nothing from here. A *state* below is a mapping of full parameter names to tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from sparse_lib.checks import closest
from sparse_lib.core.guard import guards, mask_name
from sparse_lib.core.parameter import PARALLEL, WRAPPER, unwrap

State = dict[str, Tensor]

_CSR_PARTS = ("crow_indices", "col_indices", "values")
_SHAPES = "sparse_shapes"


def masks_of(model: nn.Module) -> dict[str, Tensor]:
    """Full parameter name to boolean mask, for every masked parameter; no copies.

    Prefixes of wrappers (DDP, ``torch.compile``, activation checkpointing) are left out.
    """
    plain = _namer(_checked(model))
    return {
        plain(f"{path}.{name}" if path else name): mask for path, _, name, mask in _masked(model)
    }


def is_sparse(model: nn.Module) -> bool:
    """Whether any parameter has a mask."""
    return next(_masked(model), None) is not None


# ------------------------------------------------------------------------------------------------
# From sparse to dense


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
    """
    masks = masks_of(model)
    for module in model.modules():
        for guard in list(guards(module).values()):
            if guard.driver is not None:
                guard.driver.detach(model)
            guard.remove()
    for _, module, name, mask in list(_masked(model)):
        param = module.get_parameter(name)
        delattr(module, mask_name(name))
        param.masked_fill_(~mask.to(param.device), 0)
    return masks


@torch.no_grad()
def densify(model: nn.Module) -> nn.Module:
    """Dense fine-tuning from sparse weights, in place: what was masked may grow, from 0.

    Sparse pre-training and dense fine-tuning (SPDF, Thangarasa et al. 2023, section 2). NaN, the
    sideband's mark of an absent weight, becomes 0 too. The optimizer may be kept, with its states
    (zero where the mask was), or made anew.

    Args:
        model: Model with masks, or with NaN in their place.

    Returns:
        The model.
    """
    finalize(model)
    for param in model.parameters():
        if param.is_floating_point():
            param.masked_fill_(param.isnan(), 0)
    return model


# ------------------------------------------------------------------------------------------------
# Exports


@torch.no_grad()
def export_dense(model: nn.Module) -> State:
    """State of the dense model: masked weights are zero, masks are left out. Copies."""
    masks, plain = masks_of(model), _namer(model)
    hidden = {f"{name}_mask" for name in masks}
    state = {}
    for full_name, tensor in model.state_dict().items():
        name = plain(full_name)
        if name in hidden:
            continue
        state[name] = tensor.detach().clone()
        if name in masks:
            state[name].masked_fill_(~masks[name].to(tensor.device), 0)
    return state


@torch.no_grad()
def export_nan(model: nn.Module) -> State:
    """Sideband form: as :func:`export_dense`, with NaN where the mask is zero.

    Raises:
        ValueError: If a present weight is NaN already, since it would be lost.
    """
    state = export_dense(model)
    for name, mask in masks_of(model).items():
        if bool((state[name].isnan() & mask).any()):
            raise ValueError(f"{name!r} has a present weight that is NaN")
        state[name].masked_fill_(~mask, math.nan)
    return _agreed(model, state)


@torch.no_grad()
def export_csr(model: nn.Module) -> State:
    """As :func:`export_dense`, with masked weights as CSR matrices.

    Every weight of the mask is stored, also one that is zero. Dimensions after the first are
    flattened, so a convolution becomes (outputs, inputs * kernel); vectors become one row.

    Returns:
        State; sparse tensors have the layout ``torch.sparse_csr`` and int64 indices.
    """
    state = export_dense(model)
    for name, mask in masks_of(model).items():
        state[name] = _to_csr(state[name], mask)
    return _agreed(model, state)


@torch.no_grad()
def export_safetensors(model: nn.Module, path: str | Path, *, layout: str = "dense") -> Path:
    """Write one safetensors file, and check that what it holds is the model.

    Args:
        model: Model with or without masks.
        path: File to write.
        layout: ``"dense"`` (zeros), ``"masks"`` (zeros and ``<name>_mask`` buffers), ``"nan"``
            (sideband) or ``"csr"`` (``<name>.crow_indices``, ``.col_indices`` and ``.values``;
            shapes are in the file's metadata).

    Returns:
        The path.

    Raises:
        ValueError: If the layout is unknown or the file does not agree with the model.
    """
    from safetensors.torch import save_file

    makers: dict[str, Callable[[nn.Module], State]] = {
        "dense": export_dense,
        "masks": _with_masks,
        "nan": export_nan,
        "csr": export_csr,
    }
    if layout not in makers:
        raise ValueError(f"layout {layout!r} is unknown; {closest(str(layout), makers)}")
    shapes: dict[str, list[int]] = {}
    flat: State = {}
    reference = export_dense(model)
    for name, tensor in makers[layout](model).items():
        if tensor.layout == torch.sparse_csr:
            shapes[name] = list(reference[name].shape)
            parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
            flat.update({f"{name}.{p}": t for p, t in zip(_CSR_PARTS, parts, strict=True)})
        else:
            flat[name] = tensor
    contiguous = {name: tensor.contiguous().clone() for name, tensor in flat.items()}
    save_file(contiguous, str(path), metadata={"format": "pt", _SHAPES: json.dumps(shapes)})
    weights, _ = _read_safetensors(path, reference)
    _compare(weights, reference)
    return Path(path)


def read_safetensors(path: str | Path) -> tuple[State, dict[str, Tensor]]:
    """Weights (dense, zeros where masked) and masks of a file of any layout.

    Of a ``"dense"`` file nothing says which zeros are masked, so it has no masks.
    """
    return _read_safetensors(path, ())


def _read_safetensors(path: str | Path, known: Collection[str]) -> tuple[State, dict[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        shapes = json.loads((file.metadata() or {}).get(_SHAPES, "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}
    for name, shape in shapes.items():
        crow, column, values = (state.pop(f"{name}.{part}") for part in _CSR_PARTS)
        rows = crow.numel() - 1
        size = (rows, math.prod(shape) // max(1, rows))
        state[name] = torch.sparse_csr_tensor(crow, column, values, size)
    weights, masks = _split_state(state, known)
    for name, shape in shapes.items():
        weights[name], masks[name] = weights[name].reshape(shape), masks[name].reshape(shape)
    return weights, masks


def check_agrees(
    model: nn.Module, state: Mapping[str, Tensor], inputs: tuple[Any, ...] | None = None
) -> None:
    """Check that a state of any layout is this model, bit for bit.

    Args:
        model: Model with or without masks, in the mode in which it is to be compared.
        state: What an export returned.
        inputs: If given, outputs of the model on these inputs are compared too.

    Raises:
        ValueError: If a name, a value or the output differs; names the first difference.
    """
    reference = export_dense(model)
    weights, _ = _split_state(state, reference)
    weights = {
        n: w.reshape(reference[n].shape) if n in reference else w for n, w in weights.items()
    }
    _compare(weights, reference)
    if inputs is None:
        return
    with torch.no_grad():
        expected = model(*inputs)
        actual = torch.func.functional_call(unwrap(model), weights, inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def allows_two_of_four(mask: Tensor) -> bool:
    """Whether each 4 consecutive weights along dimension 1 of a matrix keep at most 2."""
    if mask.dim() != 2 or mask.shape[1] % 4:
        return False
    return bool((mask.reshape(-1, 4).sum(-1) <= 2).all())


@torch.no_grad()
def export_semi_structured(model: nn.Module) -> State:
    """As :func:`export_dense`, with ``Linear`` weights as torch's 2:4 semi-structured tensors.

    Raises:
        ValueError: If no masked matrix exists, one is not 2:4, or it is not a half-precision
            matrix on a CUDA device, the only ones that torch compresses.
    """
    masks = {name: mask for name, mask in masks_of(model).items() if mask.dim() == 2}
    if not masks:
        raise ValueError("the model has no masked matrix to export as 2:4")
    for name, mask in masks.items():
        if not allows_two_of_four(mask):
            raise ValueError(f"the mask of {name!r} keeps more than 2 of some 4 neighbours")
    state = export_dense(model)
    for name in masks:
        weight = state[name]
        if weight.device.type != "cuda" or weight.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name!r} must be float16 or bfloat16 on a CUDA device for 2:4, not "
                f"{weight.dtype} on {weight.device}"
            )
        state[name] = torch.sparse.to_sparse_semi_structured(weight)
    return state


# ------------------------------------------------------------------------------------------------
# Imports


def split_state(state: Mapping[str, Any]) -> tuple[State, dict[str, Tensor]]:
    """Dense weights and masks from a checkpoint of this library or of its relatives.

    Understood, also mixed: ``<name>_mask`` buffers (this library, cerebras-pytorch 2.2 and
    later, which nest the state under ``"model"``); masks in the optimizer's state, at
    ``optimizer.sparsity.state[name].mask`` (2.0 and 2.1); NaN for absent weights (sideband);
    ``<name>_orig`` with ``<name>_mask`` (``torch.nn.utils.prune``); CSR matrices of
    :func:`export_csr`. Prefixes of wrappers are removed, DDP's ``module.`` where all names have
    it; the argument is not changed.

    Returns:
        Full name to dense tensor with zeros where masked, and full name to boolean mask.

    Raises:
        TypeError: If the checkpoint is no mapping.
        ValueError: If a mask has no weight or another shape.
    """
    return _split_state(state, ())


def _split_state(
    state: Mapping[str, Any], known: Collection[str], maskable: Collection[str] | None = None
) -> tuple[State, dict[str, Tensor]]:
    """As :func:`split_state`, for a model with the ``known`` names.

    NaN means absent in the ``maskable`` ones, the parameters; a buffer with NaN has NaN.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("model", state), Mapping):
        raise TypeError(f"a checkpoint must be a mapping of names to tensors, not {state!r:.80}")
    saved = {n: t for n, t in state.get("model", state).items() if torch.is_tensor(t)}
    of_optimizer = _masks_of_optimizer(state)
    plain = _namer_of_state({*saved, *of_optimizer} - _AVERAGED, known)
    tensors = {plain(n): t for n, t in saved.items()}
    masks = {plain(n): m for n, m in of_optimizer.items()}
    weights: State = {}
    for name, tensor in tensors.items():
        owner = name.removesuffix("_mask")
        beside = owner in tensors and tensor.dtype == torch.bool
        if owner != name and (beside or f"{owner}_orig" in tensors):
            masks[owner] = tensor
        elif name.endswith("_orig") and f"{name.removesuffix('_orig')}_mask" in tensors:
            weights[name.removesuffix("_orig")] = tensor.detach().clone()
        elif tensor.layout == torch.sparse_csr:
            ones = torch.ones_like(tensor.values(), dtype=torch.uint8)
            pattern = (tensor.crow_indices(), tensor.col_indices(), ones)
            masks[name] = torch.sparse_csr_tensor(*pattern, tensor.shape).to_dense()
            weights[name] = tensor.to_dense()
        else:
            weights[name] = tensor.detach().clone()
            may_lack = tensor.is_floating_point() and (maskable is None or name in maskable)
            if may_lack and bool(tensor.isnan().any()):
                masks.setdefault(name, ~tensor.isnan())
    for name, mask in masks.items():
        if name not in weights or weights[name].shape != mask.shape:
            raise ValueError(f"the mask of {name!r} has no weight of its shape {tuple(mask.shape)}")
        masks[name] = mask.to(torch.bool)
        weights[name].masked_fill_(~masks[name].to(weights[name].device), 0)
    return weights, masks


@torch.no_grad()
def load_checkpoint(
    model: nn.Module, state: Mapping[str, Any], *, strict: bool = True
) -> dict[str, Tensor]:
    """Load weights and masks of any form that :func:`split_state` knows, in place.

    Masks become ``<name>_mask`` buffers, which an algorithm applied later keeps; a mask that the
    model has and the checkpoint lacks is filled with ones where ``strict`` is false.

    Args:
        model: Model, wrapped or not, with or without masks.
        state: Checkpoint.
        strict: Names must match exactly.

    Returns:
        Full name to the masks that were loaded.

    Raises:
        TypeError: If the checkpoint is no mapping, or the model no module.
        ValueError: If names or shapes do not match; the model is as it was then.
    """
    target = unwrap(model)
    plain = _namer(target)
    names_of_weights = {plain(name) for name, _ in target.named_parameters(remove_duplicate=False)}
    weights, masks = _split_state(
        state, {plain(name) for name in target.state_dict()}, names_of_weights
    )
    owned = masks_of(target)
    if strict and owned and set(owned) != set(masks):
        differing = sorted(set(owned) ^ set(masks))
        raise ValueError(f"model and checkpoint differ in which weights are masked: {differing}")
    full = {**weights, **{f"{name}_mask": mask for name, mask in masks.items()}}
    for name in set(owned) - set(masks):
        full[f"{name}_mask"] = torch.ones_like(owned[name])
    places = []
    for name, mask in masks.items():
        path, _, leaf = name.rpartition(".")
        places.append((_submodule(target, path, name), leaf, mask))
    _check_fit(target, full, strict=strict)
    for module, leaf, mask in places:
        _register_mask(module, leaf, mask)
    names = {plain(name): name for name in target.state_dict()}
    try:
        target.load_state_dict({names.get(n, n): t for n, t in full.items()}, strict=strict)
    except RuntimeError as error:
        raise ValueError(f"the checkpoint does not fit the model: {error}") from None
    return masks


@torch.no_grad()
def import_torch_prune(model: nn.Module) -> dict[str, Tensor]:
    """Take over what ``torch.nn.utils.prune`` did to a model, in place.

    ``<name>_orig`` becomes the parameter ``<name>`` again (the same object, so an optimizer keeps
    it), and ``<name>_mask`` becomes a boolean buffer that an algorithm applied later keeps.

    Returns:
        Full parameter name to mask; empty if nothing was pruned.
    """
    from torch.nn.utils.prune import BasePruningMethod

    masks, plain = {}, _namer(model)
    for path, module in model.named_modules():
        hooks = module._forward_pre_hooks
        for key in [k for k, hook in hooks.items() if isinstance(hook, BasePruningMethod)]:
            name = hooks.pop(key)._tensor_name
            mask = module._buffers.pop(f"{name}_mask")
            param = module._parameters.pop(f"{name}_orig")
            assert mask is not None and param is not None
            module.__dict__.pop(name, None)
            param.masked_fill_(mask == 0, 0)
            module.register_parameter(name, param)
            module.register_buffer(f"{name}_mask", mask != 0)
            masks[plain(f"{path}.{name}" if path else name)] = mask != 0
    return masks


# ------------------------------------------------------------------------------------------------


#: What a moving average keeps beside the model.
_AVERAGED = {"n_averaged"}


def _namer(model: nn.Module) -> Callable[[str], str]:
    """What takes the wrappers of a model out of its names, and nothing that is its own."""
    inside = [  # the innermost first
        f"{path}.module." if path else "module."
        for path, module in reversed(list(model.named_modules()))
        if isinstance(module, (*PARALLEL, AveragedModel))
    ]

    def plain(name: str) -> str:
        for prefix in inside:
            if name.startswith(prefix):
                name = prefix.removesuffix("module.") + name.removeprefix(prefix)
        return WRAPPER.sub("", name)

    return plain


def _namer_of_state(names: Collection[str], known: Collection[str]) -> Callable[[str], str]:
    """The same for names alone, where only DDP around a whole model shows."""
    own = {name.removesuffix("_mask").removesuffix("_orig") for name in names}
    is_known = bool(known) and {WRAPPER.sub("", name) for name in own} <= {*known}
    is_wrapped = not is_known and all(name.startswith("module.") for name in names)

    def plain(name: str) -> str:
        name = WRAPPER.sub("", name)
        return name.removeprefix("module.") if is_wrapped else name

    return plain


def _masked(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    for path, module in _checked(model).named_modules():
        for name, param in module._parameters.items():
            mask = module._buffers.get(f"{name}_mask")
            if param is not None and mask is not None and mask.dtype == torch.bool:
                yield path, module, name, mask


def _checked(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch module, not {type(model).__name__}")
    return model


def _check_fit(model: nn.Module, state: State, *, strict: bool) -> None:
    """Refuse tensors of other shapes and, if strict, other names, before anything is loaded."""
    plain = _namer(model)
    shapes = {plain(n): t.shape for n, t in model.state_dict().items() if torch.is_tensor(t)}
    for name, tensor in state.items():
        wanted = shapes.get(name)
        if wanted is not None and wanted != tensor.shape:
            raise ValueError(
                f"the checkpoint does not fit the model: {name!r} has shape "
                f"{tuple(tensor.shape)}, the model's {tuple(wanted)}"
            )
    missing = sorted(shapes.keys() - state.keys())
    unknown = sorted(n for n in state.keys() - shapes.keys() if not _is_mask_of(n, shapes))
    if strict and (missing or unknown):
        raise ValueError(
            f"the checkpoint does not fit the model: it lacks {missing or 'nothing'} and has "
            f"{unknown or 'nothing'} besides"
        )


def _is_mask_of(name: str, names: Mapping[str, Any]) -> bool:
    return name.endswith("_mask") and name.removesuffix("_mask") in names


def _register_mask(module: nn.Module, name: str, mask: Tensor) -> None:
    param = module._parameters.get(name)
    if param is None or param.shape != mask.shape:
        raise ValueError(f"the model has no parameter {name!r} of shape {tuple(mask.shape)}")
    if module._buffers.get(f"{name}_mask") is None:
        module.register_buffer(f"{name}_mask", mask.to(param.device))


def _submodule(model: nn.Module, path: str, name: str) -> nn.Module:
    plain = _namer(model)
    by_path = {plain(f"{full}."): module for full, module in model.named_modules()}
    found = by_path.get(f"{path}." if path else ".") or (model if not path else None)
    if found is None:
        raise ValueError(f"the checkpoint masks {name!r}, which the model does not have")
    return found


def _masks_of_optimizer(state: Mapping[str, Any]) -> dict[str, Tensor]:
    optimizer = state.get("optimizer")
    sparsity = optimizer.get("sparsity") if isinstance(optimizer, Mapping) else None
    entries = sparsity.get("state", {}) if isinstance(sparsity, Mapping) else {}
    return {name: entry["mask"] for name, entry in entries.items() if "mask" in entry}


def _with_masks(model: nn.Module) -> State:
    masks = {f"{name}_mask": mask.clone() for name, mask in masks_of(model).items()}
    return {**export_dense(model), **masks}


def _to_csr(weight: Tensor, mask: Tensor) -> Tensor:
    rows = weight.shape[0] if weight.dim() > 1 else 1
    flat, present = weight.reshape(rows, -1), mask.to(weight.device).reshape(rows, -1)
    counts = present.sum(1).cumsum(0)
    crow = torch.cat([counts.new_zeros(1), counts])
    return torch.sparse_csr_tensor(crow, present.nonzero()[:, 1], flat[present], flat.shape)


def _agreed(model: nn.Module, state: State) -> State:
    check_agrees(model, state)
    return state


def _compare(weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> None:
    if set(weights) != set(reference):
        differing = sorted(set(weights) ^ set(reference))
        raise ValueError(f"state and model differ in the names {differing}")
    for name, tensor in reference.items():
        other = weights[name].to(tensor.device)
        same = other.dtype == tensor.dtype and other.shape == tensor.shape
        if not same or not torch.equal(other.nan_to_num(), tensor.nan_to_num()):
            raise ValueError(f"state and model differ in the values of {name!r}")
