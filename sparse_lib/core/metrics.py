"""The history of masks, the work of training steps with them, and measures of one mask.

`sparse_lib.SparsityAlgorithm.metrics` puts it together for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparse_lib.layers import Layout
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true

if TYPE_CHECKING:
    from sparse_lib.core.parameter import SparseParameter

_EVER, _ALWAYS, _NEW = 1, 2, 4


@dataclass
class Work:
    """Work of training steps with one weight tensor, as counts that add up over steps.

    Present weights are summed over all steps up to ``until``, and over those ``dense_steps`` whose
    weight gradient was that of the dense tensor.
    """

    present: int = 0
    dense_steps: int = 0
    dense_present: int = 0
    until: int = 0


class MaskHistory:
    """The changes of one mask, in one byte per weight, which is allotted at its first change.

    Attributes:
        num_updates: How many times the mask was replaced.
        churn: Share of the present weights that came with the last replacement, in [0, 1].
        num_initial: Weights of the first mask, once it was replaced.
        num_grown: Weights grown by all replacements but the last, of which ``num_survived``
            outlived the next one.
    """

    def __init__(self) -> None:
        self.num_updates = 0
        self.num_initial = 0
        self.churn = 0.0
        self.num_grown = 0
        self.num_survived = 0
        self._flags: Tensor | None = None

    def record(self, old: Tensor, new: Tensor) -> None:
        """Record that ``new`` replaces ``old``; bool tensors of one shape."""
        mine = shards.local(old), shards.local(new)
        before, after = (mask.contiguous().view(torch.uint8) for mask in mine)
        if self._flags is None:
            self._flags = shards.as_shard(before * (_EVER | _ALWAYS), old)
            self.num_initial = num_true(old)
        if self._flags.device != old.device:
            self._flags = self._flags.to(old.device)  # the model has moved
        newest = self._with(_NEW)
        self.num_grown += num_true(newest)
        shards.local(newest).logical_and_(mine[1])
        self.num_survived += num_true(newest)
        grown = before.bitwise_xor(1).bitwise_and_(after)
        added = shards.as_shard(grown.view(torch.bool), old)
        self.churn = _ratio(num_true(added), num_true(new))
        self.num_updates += 1
        flags = shards.local(self._flags)
        flags.bitwise_and_(after.mul(_ALWAYS).bitwise_or_(_EVER))
        flags.bitwise_or_(after).bitwise_or_(grown.mul_(_NEW))

    def in_time_overparameterization(self, mask: Tensor) -> float:
        """Share of positions ever present, in [0, 1]; ``mask`` is the present one.

        Liu et al. 2021, "Do we actually need dense over-parameterization?", the rate R_s.
        """
        ever = mask if self._flags is None else self._with(_EVER)
        return _ratio(num_true(ever), ever.numel())

    def degree_of_constraint(self) -> float:
        """Share of the first mask's weights never dropped, in [0, 1]; 1 while that mask stands."""
        if self._flags is None:
            return 1.0
        return _ratio(num_true(self._with(_ALWAYS)), self.num_initial)

    @property
    def survival(self) -> float | None:
        """Share of grown weights that outlived the next replacement; None before any could."""
        return self.num_survived / self.num_grown if self.num_grown else None

    def _with(self, flag: int) -> Tensor:
        assert self._flags is not None
        return shards.by_shard(
            lambda flags: flags.bitwise_and(flag).ne_(0).view(torch.bool), self._flags
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and one uint8 tensor; None before the first replacement."""
        state = {key: value for key, value in vars(self).items() if key != "_flags"}
        return state | {"flags": None if self._flags is None else self._flags.clone()}

    def load_state_dict(self, state: Mapping[str, Any], mask: Tensor) -> None:
        """Restore `state_dict`; tensors are copied to where the present mask is."""
        flags = state["flags"]
        vars(self).update({key: value for key, value in state.items() if key != "flags"})
        self._flags = None
        if flags is not None:
            self._flags = shards.fitted(flags, mask).to(mask.device, copy=True)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def dead_outputs(weight_mask: Tensor, layout: Layout | None) -> int | None:
    """Number of outputs of one weight without any incoming connection.

    None for vectors, and where the layout does not tell the outputs.
    """
    if layout is None or weight_mask.dim() < 2:
        return None
    return num_true(~layout.matrices(shards.whole(weight_mask)).flatten(3).any(3))


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
