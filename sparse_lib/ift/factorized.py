"""Sparse-Factorized: two sparse factors with a norm and a ReLU between, in place of one layer."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from sparse_lib.ift import replacement
from sparse_lib.ift.sizes import factorized_size, round_size


class FactorizedLayer(replacement.Replacement):
    """``V relu(norm(U x))``, where U has the geometry of the dense layer and V is pointwise.

    V starts at the scale of the dense layer's outputs, given that a ReLU halves the mean square.
    """

    sparse_weights = ("sparse_in.weight", "sparse_out.weight")

    def __init__(
        self, dense: nn.Module, num_inputs: int, num_outputs: int, *, sparsity: float
    ) -> None:
        super().__init__(dense)
        size = round_size(factorized_size(num_inputs, num_outputs, sparsity))
        self.sparse_in = replacement.layer_from(dense, size)
        self.norm = replacement.norm(dense, size)
        self.sparse_out = replacement.layer_to(dense, size, bias=True)
        replacement.draw(self.sparse_in, 1.0)
        replacement.draw(self.sparse_out, replacement.output_scale(dense, num_inputs) * 2**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Both factors, one after the other."""
        return self.sparse_out(F.relu(self.norm(self.sparse_in(x))))


def apply(
    model: nn.Module, sparsity: float, layers: str | Sequence[str] | None = None
) -> tuple[nn.Module, list[str]]:
    """Replace layers of m inputs and n outputs by factors of inner size mn / ((m + n)(1 - s)).

    The size is rounded to the nearest whole number, at least 1: a layer's FLOPs are off by at most
    ``(1 - s)(m + n) / (2 m n)`` of the dense ones (twice that where a size below 1 becomes 1).
    """
    make = functools.partial(FactorizedLayer, sparsity=sparsity)
    return replacement.replace_layers(model, layers, "factorized", make)
