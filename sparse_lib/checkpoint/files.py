"""Safetensors files of any layout, written and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.checkpoint.csr import CSR_PARTS, from_csr
from sparse_lib.checkpoint.exports import compare, export_csr, export_dense, export_nan, with_masks
from sparse_lib.checkpoint.names import State, masks_of
from sparse_lib.checkpoint.states import split_known_state
from sparse_lib.checks import closest

# Keys of a file's metadata: shapes of CSR weights by name, the names in which NaN means absent,
# and a digest of all tensors. Files of other programs have none of them.
_SHAPES, _NAN_IS_ABSENT, _DIGEST = "sparse_shapes", "sparse_nan_is_absent", "sparse_sha256"


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
        "masks": with_masks,
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
            flat.update({f"{name}.{p}": t for p, t in zip(CSR_PARTS, parts, strict=True)})
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
    compare(weights, reference)
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
        missing = [key for part in CSR_PARTS if (key := f"{name}.{part}") not in state]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing for the CSR matrix {name!r}")
        if name in state:
            raise ValueError(f"{name!r} is there both dense and as CSR")
        crow, column, values = (state.pop(f"{name}.{part}") for part in CSR_PARTS)
        dense[name], masks[name] = from_csr(name, crow, column, values, shape)
    is_maskable = _parsed(metadata, _NAN_IS_ABSENT, list, None)
    rest, others = split_known_state(state, {*known, *dense} if known else known, is_maskable)
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
