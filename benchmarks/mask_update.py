"""Cost of a mask update of a whole model, as ratios to ``torch.topk`` of each of its tensors.

    python benchmarks/mask_update.py [--layers 14] [--sparsity 0.9] [--rounds 5]

The model has the weights of a GPT with 768 features: 7.1 million per layer, 99 million in 14. What
is timed is all that an update does after the optimizer's step: choose the masks, replace them, zero
the dropped weights and optimizer states. The yardstick is ``torch.topk(weight, kept, sorted=False)``
of each tensor in turn, its result dropped at once. One process, one thread, CPU time, the variants
taking turns. Memory is the growth of the process at its peak (Linux only), beyond what weights,
gradients, optimizer states and masks occupy anyway.
"""  # noqa: E501

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import sparse_lib as sl

WIDTH = 768
SHAPES = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
TIME_LIMIT, MEMORY_LIMIT = 1.0, 1.3


def make_model(num_layers: int, dtype: torch.dtype) -> nn.Module:
    """The linear layers of ``num_layers`` transformer blocks, with a gradient in each weight."""
    layers = [nn.Linear(i, o, bias=False) for _ in range(num_layers) for o, i in SHAPES]
    model = nn.Sequential(*layers).to(dtype)
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    return model


def make_update(
    kind: type[sl.DynamicSparsityAlgorithm], num_layers: int, sparsity: float, dtype: torch.dtype
) -> Callable[[], None]:
    """A function that updates every mask of a model in training."""
    model = make_model(num_layers, dtype)
    algorithm = kind(sparsity=sparsity, update={"freq": 1}, seed=0)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer.step()
    algorithm.apply(optimizer)
    algorithm.autoupdate = False

    def update() -> None:
        for sparse in algorithm.sparse_params.values():  # what the backward pass would have kept
            algorithm._dense[sparse.name] = sparse.param.grad
        algorithm.update(optimizer)

    return update


def make_topk(num_layers: int, sparsity: float, dtype: torch.dtype) -> Callable[[], None]:
    """``torch.topk`` of every tensor."""
    weights = [param.detach().flatten() for param in make_model(num_layers, dtype).parameters()]

    def topk() -> None:
        for weight in weights:
            torch.topk(weight, sl.num_nonzero(sparsity, weight.numel()), sorted=False)

    return topk


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def peak_growth(function: Callable[[], None]) -> float:
    """Bytes by which the process grows at most while a function runs; NaN if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # else the allocator reuses what it holds in reserve
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _memory("VmRSS")
        function()
        return _memory("VmHWM") - before
    except (OSError, AttributeError):
        function()
        return float("nan")


def main() -> None:
    """Prints a line per algorithm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    dtype = getattr(torch, arguments.dtype)
    size = (arguments.layers, arguments.sparsity, dtype)
    work = {"torch.topk": make_topk(*size)}
    work |= {kind.__name__: make_update(kind, *size) for kind in (sl.GMP, sl.SET, sl.RigL)}
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(arguments.rounds + 1):
        for name, function in work.items():
            start = time.process_time()
            function()
            if turn:  # the first turn fills caches
                times[name].append(time.process_time() - start)
    memory = {
        name: statistics.median(peak_growth(function) for _ in range(3))
        for name, function in work.items()
    }
    seconds = {name: statistics.median(values) for name, values in times.items()}

    num_parameters = arguments.layers * sum(rows * columns for rows, columns in SHAPES)
    print(f"mask update of {num_parameters / 1e6:.0f} million {arguments.dtype} weights, "
          f"sparsity {arguments.sparsity}, one thread, torch {torch.__version__}")  # fmt: skip
    print(f"torch.topk: {seconds['torch.topk']:.2f} s, {memory['torch.topk'] / 2**20:.0f} MiB")
    print(f"{'over torch.topk':<16}{'time':>7}{'limit':>7}{'memory':>8}{'limit':>7}")
    for name in list(work)[1:]:
        print(
            f"{name:<16}{seconds[name] / seconds['torch.topk']:>7.2f}{TIME_LIMIT:>7.2f}"
            f"{memory[name] / memory['torch.topk']:>8.2f}{MEMORY_LIMIT:>7.2f}"
        )


if __name__ == "__main__":
    main()
