"""Dense float32 linear layers by oneDNN, as a second baseline beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sparse_lib.layers import describe
from sparse_lib.simulation.onednn import product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        rows = source.flatten(0, -2)
        ctx.save_for_backward(rows, weight)
        ctx.has_bias = bias is not None
        return product(rows, weight, bias).unflatten(0, source.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)
        source_gradient = product(gradient, weight.T).unflatten(0, gradients[0].shape[:-1])
        bias_gradient = gradient.sum(0) if ctx.has_bias else None
        return source_gradient, product(gradient.T, rows.T), bias_gradient


class OneDnnLinear(nn.Module):
    """A linear layer whose forward and gradients are products by oneDNN.

    Args:
        weight: `[outputs, inputs]`, float32, on the CPU; becomes the parameter.
        bias: `[outputs]`, or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().contiguous())
        self.bias = None if bias is None else nn.Parameter(bias.detach())

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        result: torch.Tensor = _Linear.apply(source, self.weight, self.bias)
        return result


def replaced(model: nn.Module, make: Callable[[Any, Any], nn.Module]) -> nn.Module:
    """The model with other layers for the linear ones of its blocks, changed in place.

    Args:
        make: Makes a layer, given what `describe` says of the old one and that one.
    """
    for layer in describe(model):
        if layer.role == "block" and layer.kind in ("linear", "conv1d"):
            owner, _, leaf = layer.name.rpartition(".")
            new = make(layer, model.get_submodule(layer.name))
            setattr(model.get_submodule(owner), leaf, new)
    return model


def by_onednn(model: nn.Module) -> nn.Module:
    """The model with these layers by oneDNN."""
    return replaced(
        model,
        lambda layer, old: OneDnnLinear(
            old.weight.T if layer.kind == "conv1d" else old.weight, old.bias
        ),
    )
