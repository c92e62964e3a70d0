"""Sparse-Doped: the layer itself, sparse, plus a dense low-rank part."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import Tensor, nn

from sparse_lib.ift import replacement
from sparse_lib.ift.sizes import doped_rank, round_size


class DopedLayer(replacement.Replacement):
    """``W x + V (U x)``: W is the dense layer as it was, U has its geometry, V is pointwise.

    The low-rank part starts with the share of the output variance that the mask takes from W.
    """

    sparse_weights = ("sparse.weight",)

    def __init__(
        self, dense: nn.Module, num_inputs: int, num_outputs: int, *, sparsity: float
    ) -> None:
        super().__init__(dense)
        exact = doped_rank(num_inputs, num_outputs, sparsity)
        if exact < 0.5:
            raise ValueError(
                f"a layer of {num_inputs} inputs and {num_outputs} outputs is too small, since its "
                f"rank {exact:.2g} at sparsity {sparsity:g} rounds to 0"
            )
        rank = round_size(exact)
        self.sparse = dense
        self.low_rank_in = replacement.layer_from(dense, rank)
        self.low_rank_out = replacement.layer_to(dense, rank, bias=False)
        replacement.draw(self.low_rank_in, 1.0)
        scale = replacement.output_scale(dense, num_inputs)
        replacement.draw(self.low_rank_out, scale * sparsity**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The sparse part plus the low-rank part."""
        return self.sparse(x) + self.low_rank_out(self.low_rank_in(x))


def apply(
    model: nn.Module, sparsity: float, layers: str | Sequence[str] | None = None
) -> tuple[nn.Module, list[str]]:
    """Put a low-rank part of rank s m n / (m + n) beside layers of m inputs and n outputs.

    The rank is rounded to the nearest whole number: a layer's FLOPs are off by at most
    ``(m + n) / (2 m n)`` of the dense ones.

    Raises:
        ValueError: If a rank rounds to nothing.
    """
    make = functools.partial(DopedLayer, sparsity=sparsity)
    return replacement.replace_layers(model, layers, "doped", make)
