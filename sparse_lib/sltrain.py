"""SLTrain: linear layers as a low-rank product plus a few values at fixed random places.

This replaces modules and is no :class:`sparse_lib.SparsityAlgorithm`: the sum has no zeros that a
mask could keep, and neither a dense weight nor a mask is held between steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.checks import check_finite, check_fraction, check_integer
from sparse_lib.layers import default_filter
from sparse_lib.masks.counts import num_nonzero
from sparse_lib.masks.makers import add_random, generator

Filter = str | Sequence[str] | Callable[[str, nn.Linear], bool]


class SparseLowRankLinear(nn.Module):
    """``y = x W' + bias`` with ``W = (alpha / rank) B A + S`` (Han et al. 2024, arXiv:2406.02214).

    ``W`` exists during the forward and the backward pass only. Parameters are ``A`` (rank,
    in_features), ``B`` (out_features, rank), ``values`` (number of places,) and ``bias``; the
    buffer ``places`` has the sorted flat positions of the values, int32 where these fit.

    Args:
        in_features: Size of the input.
        out_features: Size of the output.
        rank: Rank of ``B A``, at least 1.
        sparsity: Share of zeros of ``S``, in [0, 1]; ``num_nonzero(sparsity, n)`` values.
        alpha: Factor of the product; the paper has 16 to 32 for small models.
        bias: Whether there is a bias.
        seed: Of places and first values.
        name: Full name of the module, which the draws depend on too.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If it has a wrong type.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int,
        sparsity: float,
        alpha: float = 16.0,
        bias: bool = True,
        seed: int = 0,
        name: str = "",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.rank, self.alpha = check_integer(rank, "rank", 1), check_finite(alpha, "alpha")
        self.sparsity = check_fraction(sparsity, "sparsity")
        size, count = in_features * out_features, num_nonzero(sparsity, in_features * out_features)
        draw = generator(seed, name, 0)
        none = torch.zeros(size, dtype=torch.bool)
        places = add_random(none, count, draw).nonzero().flatten()
        small = size < 2**31
        self.register_buffer("places", places.to(torch.int32 if small else torch.int64).to(device))
        bound = 1 / math.sqrt(in_features)

        def uniform(*shape: int) -> nn.Parameter:
            values = (torch.rand(shape, generator=draw, device="cpu") * 2 - 1) * bound
            return nn.Parameter(values.to(device=device, dtype=dtype))

        self.A = uniform(rank, in_features)  # as nn.Linear draws, and the authors' code
        self.B = nn.Parameter(torch.zeros(out_features, rank, device=device, dtype=dtype))
        self.values = uniform(count)
        self.bias = uniform(out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (..., in_features)."""
        product = _Product.apply(
            x, self.A, self.B, self.values, self.places, self.alpha / self.rank
        )
        return product if self.bias is None else product + self.bias

    @torch.no_grad()
    def weight(self) -> Tensor:
        """The dense ``W``, (out_features, in_features); a copy."""
        places: Tensor = self.places  # type: ignore[assignment]
        return _weight(self.A, self.B, self.values, places, self.alpha / self.rank)

    def extra_repr(self) -> str:
        """Sizes."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, rank={self.rank}, sparsity={self.sparsity}, bias={self.bias is not None}"


def _weight(a: Tensor, b: Tensor, values: Tensor, places: Tensor, scale: float) -> Tensor:
    dense = (b @ a).mul_(scale)
    dense.view(-1).index_add_(0, places, values.to(dense.dtype))
    return dense


class _Product(torch.autograd.Function):
    """``x W'`` that keeps the parts of ``W`` for the backward pass, and not ``W``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, values: Tensor, places: Tensor,
                scale: float) -> Tensor:  # fmt: skip
        ctx.dtypes = a.dtype, b.dtype, values.dtype
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
            x, a, b = x.to(kind), a.to(kind), b.to(kind)
        ctx.save_for_backward(x, a, b, values, places)
        ctx.scale = scale
        return x @ _weight(a, b, values, places, scale).T

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (gradient,) = outputs
        x, a, b, values, places = ctx.saved_tensors
        gradient = gradient.to(x.dtype)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = gradient @ _weight(a, b, values, places, ctx.scale)
        flat = gradient.reshape(-1, gradient.shape[-1])
        dense = flat.T @ x.reshape(-1, x.shape[-1])
        to_a, to_b = (b.T @ dense).mul_(ctx.scale), (dense @ a.T).mul_(ctx.scale)
        to_values = dense.view(-1).index_select(0, places)
        parts = zip((to_a, to_b, to_values), ctx.dtypes, strict=True)
        return to_x, *(part.to(dtype) for part, dtype in parts), None, None


def sltrain(
    model: nn.Module,
    *,
    rank: int,
    sparsity: float,
    alpha: float = 16.0,
    param_filter: Filter | None = None,
    seed: int = 0,
) -> list[str]:
    """Replace linear layers of a model by :class:`SparseLowRankLinear`, in place, drawn anew.

    Train from scratch: the weights that the layers had are given up. Build the optimizer after.

    Args:
        model: Any module with ``nn.Linear`` layers.
        rank: See :class:`SparseLowRankLinear`; at most the smaller side of each layer.
        sparsity: See there; the paper has 0.97.
        alpha: See there.
        param_filter: Which weights: a glob on the full name, a list of globs, or a function of
            name and layer; None takes :func:`sparse_lib.layers.default_filter`.
        seed: Of all draws, with each module's name.

    Returns:
        Names of the replaced modules, in model order.

    Raises:
        ValueError: If nothing matches, a weight is shared, or the rank is above a layer's side.
    """
    chosen: list[tuple[str, nn.Linear]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and _matches(
            param_filter, f"{name}.weight", module, model
        ):
            chosen.append((name, module))
    if not chosen:
        raise ValueError("no linear layer of the model matches param_filter")
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    check_integer(rank, "rank", 1)
    for name, layer in chosen:
        if owners[id(layer.weight)] > 1:
            raise ValueError(f"the weight of {name!r} is shared with another module")
        if rank > min(layer.weight.shape):
            shape = tuple(layer.weight.shape)
            raise ValueError(f"rank is {rank}, above a side of {name!r}, whose weight is {shape}")
        if type(layer).forward is not nn.Linear.forward:
            raise ValueError(f"{name!r} is a {type(layer).__name__} with a forward of its own")
    for name, layer in chosen:
        new = SparseLowRankLinear(
            layer.in_features, layer.out_features, rank=rank, sparsity=sparsity, alpha=alpha,
            bias=layer.bias is not None, seed=seed, name=name,
            device=layer.weight.device, dtype=layer.weight.dtype,
        )  # fmt: skip
        model.set_submodule(name, new.train(layer.training))
    return [name for name, _ in chosen]


def _matches(chosen: Filter | None, module: str, layer: nn.Linear, model: nn.Module) -> bool:
    name = f"{module}.weight"
    if chosen is None:
        return default_filter(name, layer.weight, model)
    if callable(chosen):
        return bool(chosen(name, layer))
    globs = [chosen] if isinstance(chosen, str) else chosen
    return any(fnmatchcase(name, glob) for glob in globs)
