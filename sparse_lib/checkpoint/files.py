"""Safetensors files of any layout, written and read."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.checkpoint import exports
from sparse_lib.checkpoint.names import State, masks_of
from sparse_lib.checkpoint.states import split_known_state, split_state
from sparse_lib.checks import closest

# Keys of a file's metadata: the names in which NaN means absent, and a digest of all tensors.
# Files of other programs have neither.
_NAN_IS_ABSENT, _DIGEST = "sparse_nan_is_absent", "sparse_sha256"


@torch.no_grad()
def export_safetensors(model: nn.Module, path: str | Path, *, layout: str = "dense") -> Path:
    """Write one safetensors file, with a digest of what it holds.

    Args:
        model: Model with or without masks.
        path: File to write.
        layout: ``"dense"`` (zeros), ``"masks"`` (zeros, and each mask as bits in
            ``<name>.bitmask``), ``"nan"`` (sideband) or ``"bitmask"`` (values and bits; see
            `export_bitmask`). Relative to a dense float32 file at 50% the sizes are 1, 1.03,
            1 and 0.53; for bfloat16 1, 1.06, 1 and 0.56.

    Returns:
        The path.

    Raises:
        ValueError: If the layout is unknown, or of ``"nan"``, if a present weight is NaN.
        OSError: If the file cannot be written.
        ModuleNotFoundError: If safetensors is not installed.
    """
    save_file = _safetensors("torch").save_file
    makers: dict[str, Callable[[nn.Module], State]] = {
        "dense": exports.export_dense,
        "masks": exports.export_with_masks,
        "nan": exports.export_nan,
        "bitmask": exports.export_bitmask,
    }
    if layout not in makers:
        raise ValueError(f"layout {layout!r} is unknown; {closest(str(layout), makers)}")
    state = {name: tensor.contiguous().clone() for name, tensor in makers[layout](model).items()}
    names = json.dumps(list(masks_of(model)) if layout == "nan" else [])
    metadata = {"format": "pt", _NAN_IS_ABSENT: names}
    metadata[_DIGEST] = _digest(state, metadata)
    try:
        save_file(state, str(path), metadata=metadata)
    except _safetensors().SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    return Path(path)


def read_safetensors(path: str | Path) -> tuple[State, dict[str, Tensor]]:
    """Weights (dense, zeros where masked) and masks of a file of any layout.

    Of a ``"dense"`` file nothing says which zeros are masked, so it has no masks. In a file that
    `export_safetensors` did not write, NaN means absent in every tensor.

    Returns:
        Full name to dense tensor, and full name to boolean mask of the same shape.

    Raises:
        ValueError: If the file is damaged or its parts do not fit together; names file and key.
        OSError: If there is no such file, or it cannot be read.
    """
    with opened(path) as file:
        metadata = file.metadata() or {}
        state = {name: file.get_tensor(name) for name in file.keys()}
    try:
        return _split_file(state, metadata)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """A safetensors file, open; ValueError if what is read of it is damaged."""
    library = _safetensors()
    try:
        with library.safe_open(str(path), framework="pt") as file:
            yield file
    except (library.SafetensorError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no whole safetensors file: {reason}") from None
    except OSError as error:
        if Path(path).is_dir():
            raise IsADirectoryError(f"{path} is a folder, not a safetensors file") from error
        raise


def _safetensors(module: str = "") -> Any:
    try:
        return importlib.import_module(f"safetensors.{module}".rstrip("."))
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "files need the package safetensors: pip install 'sparse-lib[safetensors]'"
        ) from None


def _split_file(state: State, metadata: Mapping[str, str]) -> tuple[State, dict[str, Tensor]]:
    """Weights and masks of a file's tensors and metadata; ValueError if they do not fit."""
    if _DIGEST in metadata and metadata[_DIGEST] != _digest(state, metadata):
        raise ValueError(f"the tensors do not have the digest {_DIGEST!r}; the file is damaged")
    if _NAN_IS_ABSENT not in metadata:
        return split_state(state)
    text, names = metadata[_NAN_IS_ABSENT], None
    with contextlib.suppress(ValueError, RecursionError):
        names = json.loads(text)
    if not isinstance(names, list):
        raise ValueError(f"the metadata {_NAN_IS_ABSENT!r} must be a JSON list, not {text!r:.80}")
    return split_known_state(state, (), names)


def _digest(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over our metadata, and names, dtypes, shapes and bytes of tensors by name."""
    # Files of earlier versions have shapes of another layout, which their digests cover.
    ours = [metadata.get(key) for key in ("sparse_shapes", _NAN_IS_ABSENT)]
    sha = hashlib.sha256(json.dumps(ours).encode())
    for name in sorted(state):
        tensor = state[name].contiguous().cpu()
        sha.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
