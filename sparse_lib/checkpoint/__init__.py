"""Checkpoints: make a model dense, export its sparse weights, read other libraries' masks.

Masks are boolean buffers ``<name>_mask`` beside their parameter, so a model's own ``state_dict``
needs nothing from here; `export_with_masks` has them as bits. A *state* below is a mapping of full
parameter names to tensors.
"""

from sparse_lib.checkpoint.exports import (
    densify,
    export_bitmask,
    export_dense,
    export_nan,
    export_with_masks,
    finalize,
)
from sparse_lib.checkpoint.files import export_safetensors, read_safetensors
from sparse_lib.checkpoint.loading import import_torch_prune, load_checkpoint, load_masks
from sparse_lib.checkpoint.names import State, is_sparse, masks_of
from sparse_lib.checkpoint.shrinking import shrink
from sparse_lib.checkpoint.states import split_state

__all__ = [
    "State",
    "densify",
    "export_bitmask",
    "export_dense",
    "export_nan",
    "export_safetensors",
    "export_with_masks",
    "finalize",
    "import_torch_prune",
    "is_sparse",
    "load_checkpoint",
    "load_masks",
    "masks_of",
    "read_safetensors",
    "shrink",
    "split_state",
]
