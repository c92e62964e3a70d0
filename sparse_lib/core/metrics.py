"""What masks did, as plain numbers.

:meth:`sparse_lib.SparsityAlgorithm.metrics` puts them together for a run; the functions here are
their definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparse_lib.core.guard import mask_name
from sparse_lib.layers import layer_kind
from sparse_lib.masks.counts import num_true

if TYPE_CHECKING:
    from sparse_lib.flops.model import ModelFlops

_INPUTS_FIRST = ("conv1d", "conv_transpose", "embedding")
_EVER, _ALWAYS, _NEW = 1, 2, 4


def sparsity(mask: Tensor) -> float:
    """Fraction of zeros of a mask, in [0, 1] (0 for an empty one)."""
    return 1.0 - num_true(mask) / mask.numel() if mask.numel() else 0.0


def churn(old: Tensor, new: Tensor) -> float:
    """Fraction of the connections in ``new`` that were not in ``old``, in [0, 1]."""
    return _ratio(num_true(new & ~old), num_true(new))


def in_time_overparameterization(union: Tensor) -> float:
    """Share of positions that were ever present, in [0, 1].

    Args:
        union: OR of all masks so far (Liu et al. 2021, "Do we actually need dense
            over-parameterization?", the rate R_s).
    """
    return _ratio(num_true(union), union.numel())


def degree_of_constraint(ever_dropped: Tensor, initial: Tensor) -> float:
    """Share of the initial connections that were never dropped, in [0, 1]."""
    return _ratio(num_true(initial & ~ever_dropped), num_true(initial))


def dead_outputs(weight_mask: Tensor, module: nn.Module | None = None) -> int:
    """Number of outputs of one weight without any incoming connection.

    Args:
        weight_mask: Mask of at least two dimensions, outputs first.
        module: The layer that owns it, if known; transformers' ``Conv1D``, transposed
            convolutions and embeddings store inputs first.
    """
    inputs_first = module is not None and layer_kind(module) in _INPUTS_FIRST
    by_output = weight_mask.transpose(0, 1) if inputs_first else weight_mask
    return num_true(~by_output.flatten(1).any(1))


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


@dataclass
class Work:
    """What training steps made of one weight tensor, in counts that add up over steps.

    Attributes:
        present: Present weights, summed over steps.
        dense_steps: Steps whose weight gradient was that of the dense tensor.
        dense_present: Present weights, summed over these steps.
        until: The step up to which they are counted.
    """

    present: int = 0
    dense_steps: int = 0
    dense_present: int = 0
    until: int = 0


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


class MaskHistory:
    """What happened to one mask, in one byte per weight, which is allotted at its first change.

    Attributes:
        num_updates: How many times the mask was replaced.
        churn: Share of the present weights that came with the last replacement, in [0, 1].
        num_initial: Weights of the first mask, once it was replaced.
        num_grown: Weights grown by all replacements but the last.
        num_survived: How many of these outlived the replacement after the one that grew them.
    """

    def __init__(self) -> None:
        self.num_updates = 0
        self.num_initial = 0
        self.churn = 0.0
        self.num_grown = 0
        self.num_survived = 0
        self._flags: Tensor | None = None

    def record(self, old: Tensor, new: Tensor) -> None:
        """Note that ``new`` replaces ``old``; bool masks of one shape, not yet changed."""
        before, after = (mask.contiguous().view(torch.uint8) for mask in (old, new))
        if self._flags is None:
            self._flags = before * (_EVER | _ALWAYS)
            self.num_initial = num_true(old)
        self._flags = self._flags.to(old.device)  # the model may have moved
        newest = self._with(_NEW)
        self.num_grown += num_true(newest)
        self.num_survived += num_true(newest.logical_and_(new))
        grown = before.bitwise_xor(1).bitwise_and_(after)
        self.churn = _ratio(num_true(grown.view(torch.bool)), num_true(new))
        self.num_updates += 1
        flags = self._flags
        flags.bitwise_and_(after.mul(_ALWAYS).bitwise_or_(_EVER))
        flags.bitwise_or_(after).bitwise_or_(grown.mul_(_NEW))

    def in_time_overparameterization(self, mask: Tensor) -> float:
        """See :func:`in_time_overparameterization`; ``mask`` is the present one."""
        return in_time_overparameterization(mask if self._flags is None else self._with(_EVER))

    def degree_of_constraint(self) -> float:
        """See :func:`degree_of_constraint`; 1 while the first mask stands."""
        if self._flags is None:
            return 1.0
        return _ratio(num_true(self._with(_ALWAYS)), self.num_initial)

    @property
    def survival(self) -> float | None:
        """Share of grown weights that outlived the next replacement; None before any could."""
        return self.num_survived / self.num_grown if self.num_grown else None

    def _with(self, flag: int) -> Tensor:
        assert self._flags is not None
        return self._flags.bitwise_and(flag).ne_(0).view(torch.bool)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and one uint8 tensor; None before the first replacement."""
        state = {key: value for key, value in vars(self).items() if key != "_flags"}
        return state | {"flags": None if self._flags is None else self._flags.clone()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore :meth:`state_dict`; tensors are copied to a device."""
        flags = state["flags"]
        vars(self).update({key: value for key, value in state.items() if key != "flags"})
        self._flags = None if flags is None else flags.to(device, copy=True)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
