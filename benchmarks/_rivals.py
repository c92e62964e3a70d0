"""Steps of a linear layer by others, and what all steps of `device.py` share."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from experiments.computations._measured import OneDnnLinear
from sparse_lib.simulation import onednn

TOKENS = 1024
HALF, ONEDNN, TORCH = "bfloat16 dense", "oneDNN dense", "torch dense"
Step = Callable[[], Any]


def layer_step(layer: Callable, parameters: list, ends: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """Forward and backward of a layer, from gradients set to None."""
    source, gradient = ends

    def step() -> None:
        for tensor in (source, *parameters):
            tensor.grad = None
        layer(source).backward(gradient)

    return step


def random_ends(inputs: int, outputs: int, **kind: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and output gradient of a layer, the same for all variants."""
    source = torch.randn(TOKENS, inputs, requires_grad=True, **kind)
    return source, torch.randn(TOKENS, outputs, **kind)


def half_step(inputs: int, outputs: int) -> Step:
    """Step of a dense layer whose weights, tokens and gradients are bfloat16."""
    half = nn.Linear(inputs, outputs, dtype=torch.bfloat16)
    return layer_step(
        half, list(half.parameters()), random_ends(inputs, outputs, dtype=torch.bfloat16)
    )


def dense_steps(layer: nn.Linear, ends: tuple[torch.Tensor, torch.Tensor]) -> dict[Any, Step]:
    """Steps of the dense layer in float32, by torch and by oneDNN, and in bfloat16."""
    steps = {TORCH: layer_step(layer, list(layer.parameters()), ends)}
    if onednn.available():
        twin = OneDnnLinear(layer.weight, layer.bias)
        steps[ONEDNN] = layer_step(twin, list(twin.parameters()), ends)
    return {**steps, HALF: half_step(layer.in_features, layer.out_features)}


class CsrLinear(torch.autograd.Function):
    """A linear layer on MKL: CSR weight, its transpose, sampled weight gradient."""

    @staticmethod
    def forward(ctx, source, csr, transposed, pattern):
        ctx.save_for_backward(source, transposed, pattern)
        return (csr @ source.T).T

    @staticmethod
    def backward(ctx, gradient):
        source, transposed, pattern = ctx.saved_tensors
        torch.sparse.sampled_addmm(pattern, gradient.T, source, beta=0.0)
        return (transposed @ gradient.T).T, None, None, None


def csr_step(layer: nn.Linear, ends: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """Step of a masked layer by MKL's CSR."""
    weight = layer.weight.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that CSR tensors are in beta
        csr, transposed = weight.to_sparse_csr(), weight.T.to_sparse_csr()
    return layer_step(lambda source: CsrLinear.apply(source, csr, transposed, csr), [], ends)
