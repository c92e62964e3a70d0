"""What masks did, as plain numbers."""

from __future__ import annotations

from torch import Tensor, nn

from sparse_lib.enforcement import mask_name


def sparsity(mask: Tensor) -> float:
    """Fraction of zeros of a mask, in [0, 1] (0 for an empty one)."""
    return 1.0 - int(mask.count_nonzero()) / mask.numel() if mask.numel() else 0.0


def churn(old: Tensor, new: Tensor) -> float:
    """Fraction of the connections in ``new`` that were not in ``old``, in [0, 1]."""
    present = int(new.count_nonzero())
    grown = int((new & ~old).count_nonzero())
    return grown / present if present else 0.0


def in_time_overparameterization(union: Tensor) -> float:
    """Share of positions that were ever present, in [0, 1].

    Args:
        union: OR of all masks so far (Liu et al. 2021, "Do we actually need dense
            over-parameterization?", the rate R_s).
    """
    return int(union.count_nonzero()) / union.numel() if union.numel() else 0.0


def degree_of_constraint(ever_dropped: Tensor, initial: Tensor) -> float:
    """Share of the initial connections that were never dropped, in [0, 1]."""
    present = int(initial.count_nonzero())
    return int((initial & ~ever_dropped).count_nonzero()) / present if present else 0.0


def dead_units(model: nn.Module) -> dict[str, int]:
    """Number of outputs without any incoming weight, by full name of the masked parameter.

    The first dimension of a weight counts as its outputs (``Linear``, ``Conv2d``). Only
    parameters with at least two dimensions are listed.
    """
    counts = {}
    for prefix, module in model.named_modules():
        for name, param in module._parameters.items():
            mask = module._buffers.get(mask_name(name))
            if param is None or mask is None or mask.dim() < 2:
                continue
            full_name = f"{prefix}.{name}" if prefix else name
            counts[full_name] = int((~mask.flatten(1).any(1)).sum())
    return counts
