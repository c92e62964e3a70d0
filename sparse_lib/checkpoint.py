"""Checkpoints: make a model dense, export its sparse weights, read other libraries' masks.

Masks are boolean buffers ``<name>_mask`` beside their parameter, so a model's own ``state_dict``
needs nothing from here. A *state* below is a mapping of full parameter names to tensors.
"""

from __future__ import annotations

import hashlib
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
# Keys of a file's metadata: shapes of CSR weights by name, the names in which NaN means absent,
# and a digest of all tensors. Files of other programs have none of them.
_SHAPES, _NAN_IS_ABSENT, _DIGEST = "sparse_shapes", "sparse_nan_is_absent", "sparse_sha256"


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
        _clear(param, ~mask)
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
            _clear(state[name], ~masks[name])
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
    metadata = {
        "format": "pt",
        _SHAPES: json.dumps(shapes),
        _NAN_IS_ABSENT: json.dumps(list(masks_of(model)) if layout == "nan" else []),
    }
    metadata[_DIGEST] = _digest(contiguous, metadata)
    save_file(contiguous, str(path), metadata=metadata)
    weights, _ = _read_safetensors(path, reference)
    _compare(weights, reference)
    return Path(path)


def read_safetensors(path: str | Path) -> tuple[State, dict[str, Tensor]]:
    """Weights (dense, zeros where masked) and masks of a file of any layout.

    Of a ``"dense"`` file nothing says which zeros are masked, so it has no masks. In a file that
    :func:`export_safetensors` did not write, NaN means absent in every tensor.

    Returns:
        Full name to dense tensor, and full name to boolean mask of the same shape.

    Raises:
        ValueError: If the file is damaged or its parts do not fit together; names file and key.
        OSError: If there is no such file, or it cannot be read.
    """
    return _read_safetensors(path, ())


def _read_safetensors(path: str | Path, known: Collection[str]) -> tuple[State, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no whole safetensors file: {reason}") from None
    try:
        return _split_file(state, metadata, known)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _split_file(
    state: State, metadata: Mapping[str, str], known: Collection[str]
) -> tuple[State, dict[str, Tensor]]:
    """Weights and masks of a file's tensors and metadata; ValueError if they do not fit."""
    if _DIGEST in metadata and metadata[_DIGEST] != _digest(state, metadata):
        raise ValueError(f"the tensors do not have the digest {_DIGEST!r}; the file is damaged")
    shapes = _parsed(metadata, _SHAPES, dict, {})
    dense, masks = {}, {}
    for name, shape in shapes.items():
        missing = [key for part in _CSR_PARTS if (key := f"{name}.{part}") not in state]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing for the CSR matrix {name!r}")
        if name in state:
            raise ValueError(f"{name!r} is there both dense and as CSR")
        crow, column, values = (state.pop(f"{name}.{part}") for part in _CSR_PARTS)
        dense[name], masks[name] = _from_csr(name, crow, column, values, shape)
    is_maskable = _parsed(metadata, _NAN_IS_ABSENT, list, None)
    rest, others = _split_state(state, {*known, *dense} if known else known, is_maskable)
    twice = sorted((rest.keys() | others.keys()) & dense.keys())
    if twice:
        raise ValueError(f"{twice[0]!r} is there more than once")
    return {**dense, **rest}, {**masks, **others}


def _parsed(metadata: Mapping[str, str], key: str, kind: type, default: Any) -> Any:
    if key not in metadata:
        return default
    try:
        value = json.loads(metadata[key])
    except (ValueError, RecursionError):
        raise ValueError(f"the metadata {key!r} is no JSON: {metadata[key]!r:.80}") from None
    if not isinstance(value, kind):
        raise ValueError(f"the metadata {key!r} must be a JSON {kind.__name__}, not {value!r:.80}")
    return value


def _digest(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over our metadata, and names, dtypes, shapes and bytes of tensors by name."""
    ours = [metadata.get(key) for key in (_SHAPES, _NAN_IS_ABSENT)]
    sha = hashlib.sha256(json.dumps(ours).encode())
    for name in sorted(state):
        tensor = state[name].contiguous().cpu()
        sha.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


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
    weights, _ = _split_state(state, reference, ())
    masks = masks_of(model)
    for name in weights.keys() & reference.keys():
        if weights[name].numel() == reference[name].numel():
            weights[name] = weights[name].reshape(reference[name].shape)
            if name in masks:  # NaN means absent there, and is a value elsewhere
                _clear(weights[name], weights[name].isnan() & ~masks[name])
    _compare(weights, reference)
    if inputs is None:
        return
    with torch.no_grad():
        expected = model(*inputs)
        actual = torch.func.functional_call(unwrap(model), weights, inputs)
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        raise ValueError(f"state and model differ in their outputs: {error}") from None


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
        ValueError: If a name is no string or comes twice, a mask has no weight, another shape or
            values besides 0 and 1, or a tensor has another layout than strided or a valid CSR.
    """
    return _split_state(state, ())


def _split_state(
    state: Mapping[str, Any], known: Collection[str], maskable: Collection[str] | None = None
) -> tuple[State, dict[str, Tensor]]:
    """As :func:`split_state`, for a model with the ``known`` names.

    NaN means absent in the ``maskable`` ones, the parameters; a buffer with NaN has NaN.
    """
    saved, of_optimizer = _tensors_of(state), _masks_of_optimizer(state)
    plain = _namer_of_state({*saved, *of_optimizer} - _AVERAGED, known)
    tensors, masks = _renamed(saved, plain), _renamed(of_optimizer, plain)
    weights: State = {}
    for name, tensor in tensors.items():
        owner = name.removesuffix("_mask")
        beside = owner in tensors and tensor.dtype == torch.bool
        if owner != name and (beside or f"{owner}_orig" in tensors):
            masks[owner] = tensor
        elif name.endswith("_orig") and f"{name.removesuffix('_orig')}_mask" in tensors:
            if (owner := name.removesuffix("_orig")) in tensors:
                raise ValueError(f"the checkpoint has both {owner!r} and {name!r}")
            weights[owner] = tensor.detach().clone()
        elif tensor.layout == torch.sparse_csr:
            parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
            weights[name], masks[name] = _from_csr(name, *parts, list(tensor.shape))
        elif tensor.layout != torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout)
            raise ValueError(f"{name!r} is {kind}; a checkpoint holds strided or CSR tensors")
        else:
            weights[name] = tensor.detach().clone()
            may_lack = tensor.is_floating_point() and (maskable is None or name in maskable)
            if may_lack and bool(tensor.isnan().any()):
                masks.setdefault(name, ~tensor.isnan())
    for name, mask in masks.items():
        if name not in weights or weights[name].shape != mask.shape:
            raise ValueError(f"the mask of {name!r} has no weight of its shape {tuple(mask.shape)}")
        masks[name] = _as_mask(name, mask)
        _clear(weights[name], ~masks[name])
    return weights, masks


def _tensors_of(state: Any) -> State:
    """The tensors of a checkpoint, or of its ``"model"``, by name."""
    inner = state.get("model", state) if isinstance(state, Mapping) else None
    if torch.is_tensor(inner):
        inner = state  # a parameter that is called model
    if not isinstance(inner, Mapping):
        raise TypeError(f"a checkpoint must be a mapping of names to tensors, not {state!r:.80}")
    for name in inner:
        if not isinstance(name, str):
            raise ValueError(f"a checkpoint maps names to tensors; its key {name!r:.80} is no name")
    found = {name: tensor for name, tensor in inner.items() if torch.is_tensor(tensor)}
    if inner and not found:
        raise ValueError(f"the checkpoint has no tensor at its top, only {list(inner)!r:.80}")
    return found


def _renamed(tensors: State, plain: Callable[[str], str]) -> State:
    names = {name: plain(name) for name in tensors}
    if len(set(names.values())) < len(names):
        twice = next(n for n in names.values() if list(names.values()).count(n) > 1)
        raise ValueError(f"the checkpoint has {twice!r} more than once, with and without a prefix")
    return {names[name]: tensor for name, tensor in tensors.items()}


def _as_mask(name: str, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"the mask of {name!r} has values besides 0 and 1")
    return mask.to(torch.bool)


def _from_csr(
    name: str, crow: Tensor, column: Tensor, values: Tensor, shape: Any
) -> tuple[Tensor, Tensor]:
    """Dense weight and mask, both of a shape, of the arrays of a CSR matrix.

    Args:
        name: Full name of the weight, for messages.
        crow: Where each row begins, and the end; (rows + 1,), int32 or int64.
        column: Columns, ascending within a row; (weights,), int32 or int64.
        values: Present weights; (weights,).
        shape: Of the dense weight; all but its first dimension are the columns.

    Raises:
        ValueError: If the arrays are no CSR matrix of that shape.
    """
    is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not is_shape or math.prod(shape) >= 2**63:
        raise ValueError(f"{name!r} must have a shape of sizes, not {shape!r:.80}")
    rows = shape[0] if len(shape) > 1 else 1
    columns = math.prod(shape[1:] if len(shape) > 1 else shape)
    for part, array in zip(_CSR_PARTS, (crow, column, values), strict=True):
        if array.dim() != 1 or array.layout != torch.strided:
            raise ValueError(f"'{name}.{part}' must have one dimension, not {array.dim()}")
        if part != "values" and array.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"'{name}.{part}' must be int32 or int64, not {array.dtype}")
    if crow.numel() != rows + 1 or int(crow[0]) != 0 or bool((crow.diff() < 0).any()):
        raise ValueError(
            f"'{name}.crow_indices' must be {rows + 1} ascending numbers from 0, for {rows} rows"
        )
    if not int(crow[-1]) == column.numel() == values.numel():
        raise ValueError(
            f"'{name}.crow_indices' ends at {int(crow[-1])}, but there are {column.numel()} "
            f"column indices and {values.numel()} values"
        )
    if bool(((column < 0) | (column >= columns)).any()):
        raise ValueError(f"'{name}.col_indices' must lie in [0, {columns})")
    row = torch.arange(rows, device=crow.device).repeat_interleave(crow.diff())
    if bool(((column.diff() <= 0) & (row.diff() == 0)).any()):
        raise ValueError(f"'{name}.col_indices' must ascend within each row, without repetition")
    try:
        weight = values.new_zeros(rows, columns)
        mask = torch.zeros(rows, columns, dtype=torch.bool, device=values.device)
    except RuntimeError as error:
        raise ValueError(f"{name!r} of shape {shape} does not fit in memory: {error}") from None
    places = (row, column.long())
    _as_bytes(weight)[places] = _as_bytes(values.detach())
    mask[places] = True
    return weight.reshape(shape), mask.reshape(shape)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The tensor, or where an element is one byte its view as bytes, which all functions take."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _clear(tensor: Tensor, absent: Tensor) -> None:
    """Set elements to zero, in place."""
    _as_bytes(tensor.detach()).masked_fill_(absent.to(tensor.device), 0)


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
        ValueError: If names, shapes or kinds of numbers do not match, or the checkpoint is none
            that :func:`split_state` understands; the model is as it was then.
    """
    target = unwrap(_checked(model))
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
        reason = " ".join(str(error).split())
        raise ValueError(f"the checkpoint does not fit the model: {reason}") from None
    return masks


@torch.no_grad()
def import_torch_prune(model: nn.Module) -> dict[str, Tensor]:
    """Take over what ``torch.nn.utils.prune`` did to a model, in place.

    ``<name>_orig`` becomes the parameter ``<name>`` again (the same object, so an optimizer keeps
    it), and ``<name>_mask`` becomes a boolean buffer that an algorithm applied later keeps.

    Returns:
        Full parameter name to mask; empty if nothing was pruned.

    Raises:
        ValueError: If a mask has values besides 0 and 1; the model is as it was then.
    """
    from torch.nn.utils.prune import BasePruningMethod

    found, plain = [], _namer(_checked(model))
    for path, module in model.named_modules():
        for key, hook in module._forward_pre_hooks.items():
            if isinstance(hook, BasePruningMethod):
                name = hook._tensor_name
                full_name = plain(f"{path}.{name}" if path else name)
                mask = _as_mask(full_name, module.get_buffer(f"{name}_mask"))
                found.append((full_name, module, key, name, mask))
    for _, module, key, name, mask in found:
        del module._forward_pre_hooks[key], module._buffers[f"{name}_mask"]
        param = module.get_parameter(f"{name}_orig")
        del module._parameters[f"{name}_orig"]
        module.__dict__.pop(name, None)
        _clear(param, ~mask)
        module.register_parameter(name, param)
        module.register_buffer(f"{name}_mask", mask)
    return {full_name: mask for full_name, *_, mask in found}


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
    own = {plain(n): t for n, t in model.state_dict().items() if torch.is_tensor(t)}
    for name, tensor in state.items():
        wanted = own.get(name, tensor)
        if wanted.shape != tensor.shape:
            raise ValueError(
                f"the checkpoint does not fit the model: {name!r} has shape "
                f"{tuple(tensor.shape)}, the model's {tuple(wanted.shape)}"
            )
        if _number(wanted) != _number(tensor):
            raise ValueError(
                f"the checkpoint does not fit the model: {name!r} is {tensor.dtype}, the model's "
                f"{wanted.dtype}"
            )
    missing = sorted(own.keys() - state.keys())
    unknown = sorted(n for n in state.keys() - own.keys() if not _is_mask_of(n, own))
    if strict and (missing or unknown):
        raise ValueError(
            f"the checkpoint does not fit the model: it lacks {missing or 'nothing'} and has "
            f"{unknown or 'nothing'} besides"
        )


def _number(tensor: Tensor) -> str:
    """What kind of number a tensor holds; loading casts within a kind only."""
    if tensor.is_floating_point():
        return "real"
    return "complex" if tensor.is_complex() else "bool" if tensor.dtype == torch.bool else "integer"


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


def _masks_of_optimizer(state: Mapping[str, Any]) -> State:
    """Masks at ``optimizer.sparsity.state[name].mask``, by name; empty if there is no such key."""
    optimizer = state.get("optimizer")
    sparsity = optimizer.get("sparsity") if isinstance(optimizer, Mapping) else None
    entries = sparsity.get("state", {}) if isinstance(sparsity, Mapping) else {}
    if not isinstance(entries, Mapping):
        raise ValueError(f"'optimizer.sparsity.state' must be a mapping, not {entries!r:.80}")
    masks = {}
    for name, entry in entries.items():
        if isinstance(entry, Mapping) and "mask" in entry:
            if not isinstance(name, str) or not torch.is_tensor(entry["mask"]):
                raise ValueError(f"'optimizer.sparsity.state' has no mask tensor for {name!r:.80}")
            masks[name] = entry["mask"]
    return masks


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
        if not same or bool(((other != tensor) & ~(other.isnan() & tensor.isnan())).any()):
            raise ValueError(f"state and model differ in the values of {name!r}")
