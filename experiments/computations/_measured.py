"""Measuring training steps on this CPU: one thread, CPU time, the variants in turn.

Dense float32 linear layers by oneDNN are a second baseline beside torch's own.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sparse_lib.configure import configure
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from sparse_lib.layers import describe
from sparse_lib.simulation import onednn


@contextmanager
def one_thread() -> Iterator[None]:
    """CPU time of one thread says nothing about how others share a machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_seconds(steps: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """CPU seconds of each step in each round, the steps in turn; a first round warms up."""
    samples: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 1):
        for step, own in zip(steps, samples, strict=True):
            start = time.process_time()
            step()
            if number:
                own.append(time.process_time() - start)
    return samples


def layer_step(layer: nn.Module, tokens: int, width: int) -> Callable[[], None]:
    """Forward and both gradients of one layer, as a user runs them."""
    source = torch.randn(tokens, width, requires_grad=True)
    gradient = torch.randn(tokens, width)

    def step() -> None:
        source.grad = None
        layer.zero_grad()
        layer(source).backward(gradient)

    return step


def layer_speed(width: int, sparsities: Sequence[float], rounds: int) -> list[dict[str, Any]]:
    """Training step of a square layer with ``width`` tokens, skipping against dense.

    Dense is the fastest one: ``dense`` names whose that is, ``torch_s`` is the time of torch's own.
    """
    torch.manual_seed(0)
    layer = nn.Linear(width, width, bias=False)
    names, steps = ["torch"], [layer_step(layer, width, width)]
    if onednn.available():
        names.append("oneDNN")
        steps.append(layer_step(OneDnnLinear(layer.weight, None), width, width))
    if kernels.unavailable():
        sparsities = ()
    for sparsity in sparsities:
        layer = nn.Linear(width, width, bias=False)
        layer.register_buffer("weight_mask", torch.rand(width, width) >= sparsity)
        skipping = compile(layer, backend("skip", strict=True, crossover=0.0))
        steps.append(layer_step(skipping, width, width))
    seconds = cpu_seconds(steps, rounds)
    denses, sparse = seconds[: len(names)], seconds[len(names) :]
    medians = [statistics.median(own) for own in denses]
    fastest = medians.index(min(medians))
    dense = denses[fastest]
    rows = []
    for sparsity, own in zip(sparsities, sparse, strict=True):
        ratios = sorted(a / b for a, b in zip(dense, own, strict=True))
        rows.append(
            {
                "width": width,
                "tokens": width,
                "sparsity": sparsity,
                "dense": names[fastest],
                "dense_s": medians[fastest],
                "torch_s": medians[0],
                "skip_s": statistics.median(own),
                "speedup": statistics.median(ratios),
                "low": ratios[len(ratios) // 4],
                "high": ratios[-1 - len(ratios) // 4],
            }
        )
    return rows


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        rows = source.flatten(0, -2)
        ctx.save_for_backward(rows, weight)
        ctx.has_bias = bias is not None
        return onednn.product(rows, weight, bias).unflatten(0, source.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)
        source_gradient = onednn.product(gradient, weight.T).unflatten(0, gradients[0].shape[:-1])
        bias_gradient = gradient.sum(0) if ctx.has_bias else None
        return source_gradient, onednn.product(gradient.T, rows.T), bias_gradient


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


class Narrow(nn.Module):
    """In place of a linear layer: the right shape, and next to no work."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        repeats = math.ceil(self.outputs / source.shape[-1])
        return source.repeat(1, 1, repeats)[..., : self.outputs]


def bounded_steps(
    make: Callable[[], nn.Module],
    layer: list[dict[str, Any]],
    levels: Sequence[float],
    batch: tuple[int, int],
    rounds: int,
    *,
    fastest: bool,
) -> list[dict[str, Any]]:
    """Training step of a language model: dense, skipping, and without its blocks' linear layers.

    The bound keeps what is outside these layers, and runs them at the speed of the measured layer.
    With ``fastest`` the dense model is the faster one of torch's layers and oneDNN's, else torch's.
    """
    speeds = {
        row["sparsity"]: (row["dense_s"] if fastest else row["torch_s"]) / row["skip_s"]
        for row in layer
        if row["sparsity"] in levels
    }
    makers = [make]
    if fastest and onednn.available():
        makers.append(lambda: by_onednn(make()))
    steps = [model_step(one, 0.0, batch) for one in makers]
    hollow = lambda: replaced(make(), lambda layer, _: Narrow(layer.fan_out))  # noqa: E731
    steps += [model_step(hollow, 0.0, batch)]
    steps += [model_step(make, sparsity, batch) for sparsity in speeds]
    medians = [statistics.median(own) for own in cpu_seconds(steps, rounds)]
    dense = min(medians[: len(makers)])
    outside, *sparse = medians[len(makers) :]
    rows = [{"sparsity": 0.0, "step_s": dense, "bound_s": dense}]
    rows += [
        {
            "sparsity": sparsity,
            "step_s": own,
            "bound_s": outside + (dense - outside) / speeds[sparsity],
        }
        for sparsity, own in zip(speeds, sparse, strict=True)
    ]
    return [
        {**row, "outside_s": outside, "speedup": dense / row["step_s"],
         "over_bound": row["step_s"] / row["bound_s"]}
        for row in rows
    ]  # fmt: skip


def model_step(
    make: Callable[[], nn.Module], sparsity: float, batch: tuple[int, int]
) -> Callable[[], None]:
    """One optimizer step on random tokens."""
    torch.manual_seed(0)
    model = make().train()
    # As the studies train: the unfused one takes roots, which are slow at exact zeros.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if algorithm := configure(sparsity or None):
        algorithm.apply(model)
        algorithm.apply(optimizer)
    run = compile(model, "skip") if sparsity else model
    ids = torch.randint(256, batch)

    def step() -> None:
        run(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
