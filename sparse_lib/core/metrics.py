"""Definitions of what is measured on masks, as plain numbers.

:meth:`sparse_lib.SparsityAlgorithm.metrics` puts them together for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sparse_lib.core.guard import mask_name
from sparse_lib.core.history import (
    MaskHistory,
    Work,
    churn,
    degree_of_constraint,
    in_time_overparameterization,
    sparsity,
)
from sparse_lib.flops.model import ModelFlops
from sparse_lib.layers import layer_kind
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true

if TYPE_CHECKING:
    from sparse_lib.core.parameter import SparseParameter

__all__ = [
    "MaskHistory",
    "Work",
    "churn",
    "dead_outputs",
    "dead_units",
    "degree_of_constraint",
    "in_time_overparameterization",
    "sparsity",
    "summary",
    "training_flops",
]

_INPUTS_FIRST = ("conv1d", "conv_transpose", "embedding")


def dead_outputs(weight_mask: Tensor, module: nn.Module | None = None) -> int:
    """Number of outputs of one weight without any incoming connection.

    Args:
        weight_mask: Mask of at least two dimensions, outputs first.
        module: The layer that owns it, if known; transformers' ``Conv1D``, transposed
            convolutions and embeddings store inputs first.
    """
    inputs_first = module is not None and layer_kind(module) in _INPUTS_FIRST
    group, rows = shards.group_of(weight_mask), shards.local(weight_mask)
    by_output = rows.transpose(0, 1) if inputs_first else rows
    alive = by_output.flatten(1).any(1)
    if inputs_first:
        return num_true(~shards.any_rank(alive, group))
    return shards.total(num_true(~alive), group)


def dead_units(model: nn.Module) -> dict[str, int]:
    """Number of outputs without any incoming weight, by full name of the masked parameter.

    Only parameters with at least two dimensions are listed; see :func:`dead_outputs`.
    """
    counts = {}
    for prefix, module in model.named_modules():
        for name, param in module._parameters.items():
            mask = module._buffers.get(mask_name(name))
            if param is None or mask is None or mask.dim() < 2:
                continue
            counts[f"{prefix}.{name}" if prefix else name] = dead_outputs(mask, module)
    return counts


def summary(params: Mapping[str, SparseParameter]) -> dict[str, Any]:
    """Metrics of each tensor by full name, and over all weights together.

    The keys are those of :meth:`sparse_lib.SparsityAlgorithm.metrics` without FLOPs.
    """
    tensors = {name: sparse.metrics() for name, sparse in params.items()}
    sizes = {name: sparse.param.numel() for name, sparse in params.items()}
    present = {name: num_true(sparse.mask) for name, sparse in params.items()}
    initial = {n: s.history.num_initial or present[n] for n, s in params.items()}
    grown = sum(sparse.history.num_grown for sparse in params.values())
    survived = sum(sparse.history.num_survived for sparse in params.values())

    def mean(key: str, weights: dict[str, int]) -> float:
        total = sum(weights.values())
        return sum(tensors[n][key] * weights[n] for n in tensors) / total if total else 0.0

    return {
        "tensors": tensors,
        "sparsity": 1.0 - sum(present.values()) / sum(sizes.values()) if tensors else 0.0,
        "churn": mean("churn", present),
        "itop": mean("itop", sizes),
        "degree_of_constraint": mean("degree_of_constraint", initial),
        "survival": survived / grown if grown else None,
        "dead_units": sum(tensor["dead_units"] or 0 for tensor in tensors.values()),
    }


def training_flops(flops: ModelFlops, num_steps: int, work: Mapping[str, Work]) -> int:
    """FLOPs of training steps: forward, input gradient and weight gradient, 2 per multiply-add.

    Exact where masks changed on the way, unlike ``flops.training_step`` times the steps.

    Args:
        flops: What :func:`sparse_lib.count_flops` says of the model and one batch.
        num_steps: How many steps.
        work: Full parameter name to the work of these steps; other weights are dense.
    """
    total = 0
    for layer in flops.layers:
        name = layer.weight_name if layer.weight_name in work else layer.tied_to
        if name is None or name not in work:
            total += 3 * layer.dense_flops * num_steps
            continue
        done = work[name]
        weights = 3 * done.present + layer.num_weights * done.dense_steps - done.dense_present
        total += 2 * layer.num_positions * weights
    return total
