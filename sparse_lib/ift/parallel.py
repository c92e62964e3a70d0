"""Sparse-Parallel: a sum of sparse branches, each with its own norm, in place of one layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparse_lib.ift import replacement
from sparse_lib.ift.sizes import parallel_branches, round_size


class ParallelLayer(replacement.Replacement):
    """``sum_j norm_j(W_j x)`` over branches of the shape of the dense layer.

    The activation that follows the dense layer follows the sum. The norm (batch norm after
    convolutions, layer norm after linear layers) keeps the branches from being one linear map; its
    bias takes the place of the layer's. Norm weights start so that the sum has the scale of the
    dense layer's outputs.
    """

    def __init__(self, dense: nn.Module, num_inputs: int, num_branches: int) -> None:
        super().__init__(dense)
        self.sparse_weights = tuple(f"branches.{i}.sparse.weight" for i in range(num_branches))
        branches, scale = [], replacement.output_scale(dense, num_inputs) / num_branches**0.5
        size = replacement.sizes(dense)[1]
        for i in range(num_branches):
            sparse, own_norm = replacement.layer_from(dense, size), replacement.norm(dense, size)
            replacement.draw(sparse, 1.0)
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


def apply(
    model: nn.Module, sparsity: float, layers: str | Sequence[str] | None = None
) -> tuple[nn.Module, list[str]]:
    """Replace layers by ``1 / (1 - s)`` branches, to the nearest whole number.

    A layer's FLOPs are off by at most ``(1 - s) / 2`` of the dense ones, and by nothing where
    ``1 / (1 - s)`` is whole.

    Raises:
        ValueError: If that number rounds to one branch.
    """
    branches = parallel_branches(sparsity)
    if round_size(branches) < 2:
        raise ValueError(
            f"family 'parallel' cannot apply at sparsity {sparsity:g}: 1 / (1 - sparsity) = "
            f"{branches:.3g} rounds to one branch, so the sparsity must be at least 1/3"
        )
    return replacement.replace_layers(
        model,
        layers,
        "parallel",
        lambda dense, num_inputs, _: ParallelLayer(dense, num_inputs, round_size(branches)),
    )
