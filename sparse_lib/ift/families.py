"""The replacement of one dense layer in each family, with masks on its sparse weights.

``m`` and ``n`` are a layer's inputs (times kernel positions) and outputs, ``s`` the sparsity. Sizes
are rounded to the nearest whole number, at least 1, and FLOPs of a layer differ so from the dense
ones. New weights are drawn so that outputs start at the scale of the dense layer's.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_lib.ift import replacement
from sparse_lib.ift.replacement import Replacement, draw, layer_from, layer_to, output_scale
from sparse_lib.ift.sizes import doped_rank, factorized_size, parallel_branches, round_size


class ParallelLayer(Replacement):
    """``sum_j norm_j(W_j x)`` over ``1 / (1 - s)`` branches of the shape of the dense layer.

    The activation that follows the dense layer follows the sum. The norm (batch norm after
    convolutions, layer norm after linear layers) keeps the branches from being one linear map; its
    bias takes the place of the layer's. FLOPs differ by at most ``(1 - s) / 2`` of the dense ones,
    and by nothing where ``1 / (1 - s)`` is whole. ValueError if that rounds to one branch.
    """

    def __init__(
        self, dense: nn.Module, num_inputs: int, num_outputs: int, sparsity: float
    ) -> None:
        super().__init__(dense)
        exact = parallel_branches(sparsity)
        if (num_branches := round_size(exact)) < 2:
            raise ValueError(
                f"at sparsity {sparsity:g}, 1 / (1 - sparsity) = {exact:.3g} rounds to one branch, "
                "so the sparsity must be at least 1/3"
            )
        self.sparse_weights = tuple(f"branches.{i}.sparse.weight" for i in range(num_branches))
        branches, scale = [], output_scale(dense, num_inputs) / num_branches**0.5
        size = replacement.sizes(dense)[1]
        for i in range(num_branches):
            sparse, own_norm = layer_from(dense, size), replacement.norm(dense, size)
            draw(sparse, 1.0)
            with torch.no_grad():
                own_norm.weight.mul_(scale)
                if i == 0 and isinstance(dense.bias, Tensor):
                    own_norm.bias.copy_(dense.bias)
            branches.append(nn.Sequential(OrderedDict(sparse=sparse, norm=own_norm)))
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the branches."""
        first, *others = self.branches
        out: Tensor = first(x)
        for branch in others:
            out = out + branch(x)
        return out


class FactorizedLayer(Replacement):
    """``V relu(norm(U x))`` of inner size ``m n / ((m + n)(1 - s))``; both factors are sparse.

    U has the geometry of the dense layer, V is pointwise and starts at the scale of the dense
    layer's outputs, given that a ReLU halves the mean square. FLOPs differ by at most
    ``(1 - s)(m + n) / (2 m n)`` of the dense ones (twice that where a size below 1 becomes 1).
    """

    sparse_weights = ("sparse_in.weight", "sparse_out.weight")

    def __init__(
        self, dense: nn.Module, num_inputs: int, num_outputs: int, sparsity: float
    ) -> None:
        super().__init__(dense)
        size = round_size(factorized_size(num_inputs, num_outputs, sparsity))
        self.sparse_in = layer_from(dense, size)
        self.norm = replacement.norm(dense, size)
        self.sparse_out = layer_to(dense, size, bias=True)
        draw(self.sparse_in, 1.0)
        draw(self.sparse_out, output_scale(dense, num_inputs) * 2**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Both factors, one after the other."""
        return self.sparse_out(F.relu(self.norm(self.sparse_in(x))))


class DopedLayer(Replacement):
    """``W x + V (U x)`` of rank ``s m n / (m + n)``: W is the dense layer as it was, and sparse.

    U has its geometry, V is pointwise; both are dense, and start with the share of the output
    variance that the mask takes from W. FLOPs differ by at most ``(m + n) / (2 m n)`` of the dense
    ones. ValueError if the rank rounds to 0.
    """

    sparse_weights = ("sparse.weight",)

    def __init__(
        self, dense: nn.Module, num_inputs: int, num_outputs: int, sparsity: float
    ) -> None:
        super().__init__(dense)
        exact = doped_rank(num_inputs, num_outputs, sparsity)
        if exact < 0.5:
            raise ValueError(
                f"a layer of {num_inputs} inputs and {num_outputs} outputs is too small, since its "
                f"rank {exact:.2g} at sparsity {sparsity:g} rounds to 0"
            )
        self.sparse = dense
        self.low_rank_in = layer_from(dense, round_size(exact))
        self.low_rank_out = layer_to(dense, round_size(exact), bias=False)
        draw(self.low_rank_in, 1.0)
        draw(self.low_rank_out, output_scale(dense, num_inputs) * sparsity**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The sparse part plus the low-rank part."""
        return self.sparse(x) + self.low_rank_out(self.low_rank_in(x))


class SLTrainLayer(Replacement):
    """SLTrain (Han et al. 2024, arXiv:2406.02214): ``SCALE B (A x) + S x``, rank ``min(m, n) / 4``.

    A and S have the geometry of the dense layer, B is pointwise. A and S start uniform in
    ``+-1 / sqrt(m)`` and B at zero, as in the authors' code; the bias of the dense layer stays, its
    weight is given up. A quarter is the source's share in three of its four model sizes (a third in
    the other); ``s`` is the sparsity of S alone, 0.97 in the source. A layer costs
    ``(1 - s) + rank (m + n) / (m n)`` of the dense one, less than in the other families.

    S is under a mask, so that FLOPs are counted as for any other layer, and masks need not be
    static; where they are, ``sparse_lib.device.pack`` keeps the values alone, as the authors do.
    """

    SCALE = 0.25
    """Factor of the low-rank part: ``alpha / r`` of the source's smallest model, 32 / 128."""

    sparse_weights = ("sparse.weight",)

    def __init__(
        self, dense: nn.Module, num_inputs: int, num_outputs: int, sparsity: float
    ) -> None:
        super().__init__(dense)
        rank = round_size(min(num_inputs, num_outputs) / 4)
        self.sparse = dense
        self.low_rank_in = layer_from(dense, rank)
        self.low_rank_out = layer_to(dense, rank, bias=False)
        bound, weight = 1 / math.sqrt(num_inputs), dense.weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            weight.uniform_(-bound, bound)
            self.low_rank_in.weight.uniform_(-bound, bound)
            self.low_rank_out.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """The sparse part plus the low-rank part."""
        return self.sparse(x) + self.SCALE * self.low_rank_out(self.low_rank_in(x))
