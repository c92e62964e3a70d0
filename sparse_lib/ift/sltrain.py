"""SLTrain as a replacement of layers: a dense low-rank part plus weights at fixed random places.

Han et al. 2024, arXiv:2406.02214. Unlike the other families it costs less than the dense layer. Its
sparse part is under a mask, so that FLOPs are counted as for any other layer, and its masks need
not be static; where they are, ``sparse_lib.device.pack`` keeps the values alone, as the authors do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparse_lib.ift.replacement import Replacement, layer_from, layer_to, replace_layers
from sparse_lib.ift.sizes import round_size

SCALE = 0.25
"""Factor of the low-rank part: ``alpha / r`` of the source's smallest model, 32 / 128."""


class LowRankPlusSparseLayer(Replacement):
    """``SCALE B (A x) + S x``: A and S have the geometry of the dense layer, B is pointwise.

    A and S start uniform in ``+-1 / sqrt(num_inputs)`` and B at zero, as in the authors' code. The
    bias of the dense layer stays, its weight is given up.
    """

    sparse_weights = ("sparse.weight",)

    def __init__(self, dense: nn.Module, num_inputs: int, num_outputs: int) -> None:
        super().__init__(dense)
        rank = round_size(min(num_inputs, num_outputs) / 4)
        self.sparse = dense
        self.low_rank_in = layer_from(dense, rank)
        self.low_rank_out = layer_to(dense, rank, bias=False)
        bound = 1 / math.sqrt(num_inputs)
        weight = dense.weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            weight.uniform_(-bound, bound)
            self.low_rank_in.weight.uniform_(-bound, bound)
            self.low_rank_out.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """The sparse part plus the low-rank part."""
        return self.sparse(x) + SCALE * self.low_rank_out(self.low_rank_in(x))


def apply(
    model: nn.Module, sparsity: float, layers: str | Sequence[str] | None = None
) -> tuple[nn.Module, list[str]]:
    """Replace layers of m inputs and n outputs by a low rank of min(m, n) / 4 plus a sparse part.

    A quarter is the source's share in three of its four model sizes (a third in the other). The
    rank is rounded to the nearest whole number, at least 1; ``sparsity`` is that of the sparse part
    alone, 0.97 in the source. A layer costs ``(1 - s) + rank (m + n) / (m n)`` of the dense one.
    """
    return replace_layers(model, layers, "sltrain", LowRankPlusSparseLayer)
