"""Definitions of what is measured on masks, as plain numbers.

`sparse_lib.SparsityAlgorithm.metrics` puts them together for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparse_lib.layers import Layout
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true

if TYPE_CHECKING:
    from sparse_lib.core.parameter import SparseParameter


def dead_outputs(weight_mask: Tensor, layout: Layout | None) -> int | None:
    """Number of outputs of one weight without any incoming connection.

    None for vectors, and where the layout does not tell the outputs.
    """
    if layout is None or weight_mask.dim() < 2:
        return None
    if layout.inputs_first or layout.groups > 1:
        weight_mask = shards.whole(weight_mask)
    alive = layout.matrices(shards.local(weight_mask)).flatten(3).any(3)
    return shards.total(num_true(~alive), shards.group_of(weight_mask))


def summary(params: Mapping[str, SparseParameter]) -> dict[str, Any]:
    """`sparse_lib.SparsityAlgorithm.metrics` without FLOPs: by tensor, and over all weights."""
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
