"""2:4 sparse products on sparse tensor cores beside dense ones in bf16, and whether they agree.

    python benchmarks/gpu_products.py [--tokens 16384] [--rounds 20] [--device auto]

For the layers of a 124M and a 1.3B decoder: the forward product, the input's gradient (sparse too
where the mask is 2:4 along both dimensions), the weight's gradient (always dense), and the three
together, each as the time of the dense layer over that of `sparse_lib`'s. Sparse and dense take
turns. Where 2:4 cannot run, the dense layer's time alone is printed, with the reason.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from experiments.training.device import gpu_facts, resolve
from sparse_lib import Static
from sparse_lib.device import compile
from sparse_lib.execution.semi_structured import unavailable

#: Inputs and outputs: attention and both products of the feed-forward part.
SHAPES = [(768, 768), (768, 3072), (3072, 768), (2048, 2048), (2048, 8192), (8192, 2048)]


def both_ways(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """A mask that is 2:4 along rows and along columns: each tile of 4 x 4 has two of each."""
    tiles = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]], dtype=torch.bool)
    mask = tiles.repeat(rows // 4, columns // 4)
    turned = torch.rand(rows // 4, columns // 4, generator=generator) < 0.5
    return mask ^ turned.repeat_interleave(4, 0).repeat_interleave(4, 1)


def layers(columns: int, rows: int, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A masked dense layer, and the same one run as 2:4."""
    generator = torch.Generator().manual_seed(0)
    dense = nn.Sequential(nn.Linear(columns, rows, bias=False))
    mask = both_ways(rows, columns, generator)
    Static(0.5, init_method=lambda p, s: mask).apply(dense)
    dense = dense.to(device)
    return dense, compile(copy.deepcopy(dense), "semi_structured")


def parts(layer: nn.Module, source: torch.Tensor) -> dict[str, Callable[[], None]]:
    """What is timed of a layer."""
    weight = layer[0].weight  # type: ignore[index, union-attr]

    def run(needs_input: bool, needs_weight: bool, backward: bool = True) -> None:
        x = source.detach().requires_grad_(needs_input)
        weight.requires_grad_(needs_weight)  # type: ignore[union-attr, operator]
        weight.grad = None  # type: ignore[union-attr]
        with torch.autocast(source.device.type, torch.bfloat16):
            out = layer(x)
        if backward:
            out.backward(out.detach())

    def forward() -> None:
        with torch.no_grad(), torch.autocast(source.device.type, torch.bfloat16):
            layer(source)

    return {
        "forward": forward,
        "input": lambda: run(True, False),
        "weight": lambda: run(False, True),
        "step": lambda: run(True, True),
    }


def seconds(function: Callable[[], None], device: torch.device) -> float:
    """Of one call, without what ran before it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - start


def main() -> None:
    """Print one line per shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve(options.device)
    on_gpu = device.type == "cuda"
    reason = unavailable()
    tokens = options.tokens or (16384 if on_gpu else 64)
    print(f"{gpu_facts(device) or 'CPU twin: no statement about a GPU'}; {tokens} tokens, bf16")
    if reason:
        print(f"2:4 runs masked dense: {reason}")
    print("inputs x outputs   error  forward  input  weight  step: times as fast as dense")
    for columns, rows in SHAPES if on_gpu else SHAPES[:1]:
        dense, sparse = layers(columns, rows, device)
        source = torch.randn(tokens, columns, device=device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            wanted, found = dense(source).float(), sparse(source).float()
        error = ((wanted - found).norm() / wanted.norm()).item()
        ratios = []
        for name in ("forward", "input", "weight", "step"):
            first, second = parts(dense, source)[name], parts(sparse, source)[name]
            for function in (first, second):
                function()
            turns = [
                (seconds(first, device), seconds(second, device)) for _ in range(options.rounds)
            ]
            ratios.append(statistics.median(a / b for a, b in turns))
        print(f"{columns:6} x {rows:6}   {error:7.1e}" + "".join(f"  {r:6.2f}" for r in ratios))


if __name__ == "__main__":
    main()
