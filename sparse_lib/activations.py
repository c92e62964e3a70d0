"""Sparse activations as modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparse_lib.checks import check_finite, check_integer


class TopKActivation(nn.Module):
    """Keeps the activations of largest magnitude, and sets the others to zero.

    The ``AbsTopK`` of weight-sparse transformers (Gao et al. 2025, arXiv:2511.13653), who keep one
    in four at the places where a layer reads and writes. The gradient of what is kept passes.

    Args:
        k: How many stay along the last dimension; or
        fraction: which share of them, in (0, 1], at least one.

    Raises:
        ValueError: If not exactly one is given, or it is out of range.

    >>> TopKActivation(2)(torch.tensor([1.0, -3.0, 2.0, 0.5]))
    tensor([ 0., -3.,  2.,  0.])
    """

    def __init__(self, k: int | None = None, *, fraction: float | None = None) -> None:
        super().__init__()
        if (k is None) == (fraction is None):
            given = "neither" if k is None else "both"
            raise ValueError(f"TopKActivation takes k or fraction, not {given}")
        self.k = None if k is None else check_integer(k, "k", 1)
        self.fraction = None if fraction is None else check_finite(fraction, "fraction")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be within (0, 1], not {fraction!r}")

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of ``x``, any number of dimensions."""
        size = x.shape[-1]
        k = self.k or max(1, round((self.fraction or 0.0) * size))
        best = x.abs().topk(min(k, size), dim=-1).indices
        return torch.zeros_like(x).scatter(-1, best, x.gather(-1, best))

    def extra_repr(self) -> str:
        """The setting."""
        return f"k={self.k}" if self.k is not None else f"fraction={self.fraction}"
