"""Cost of a mask update of a whole model, as ratios to ``torch.topk`` of each of its tensors.

    python -m benchmarks.mask_update [--layers 14] [--sparsity 0.9] [--rounds 5]

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
import multiprocessing
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import nn

import sparse_lib as sl

WIDTH = 768
SHAPES = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
TIME_LIMIT, MEMORY_LIMIT = 1.0, 1.3


def make_work(num_layers: int, sparsity: float, dtype: str) -> dict[str, Callable[[], None]]:
    """Name to what is measured; the first is the yardstick."""
    torch.manual_seed(0)
    size = (num_layers, sparsity, getattr(torch, dtype))
    updates = {kind.__name__: make_update(kind, *size) for kind in (sl.GMP, sl.SET, sl.RigL)}
    return {"torch.topk": make_topk(*size)} | updates


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
            algorithm.dense_gradients.kept[sparse.name] = sparse.param.grad
        algorithm.update(optimizer)

    return update


def make_topk(num_layers: int, sparsity: float, dtype: torch.dtype) -> Callable[[], None]:
    """``torch.topk`` of every tensor."""
    weights = [param.detach().flatten() for param in make_model(num_layers, dtype).parameters()]

    def topk() -> None:
        for weight in weights:
            torch.topk(weight, sl.masks.num_nonzero(sparsity, weight.numel()), sorted=False)

    return topk


def measure_times(size: tuple, num_rounds: int) -> dict[str, float]:
    """Median CPU seconds of each kind of work, the kinds taking turns."""
    work = make_work(*size)
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(num_rounds + 1):
        for name, function in work.items():
            start = time.process_time()
            function()
            if turn:  # the first turn fills caches
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_memory(size: tuple) -> dict[str, float]:
    """Bytes by which the process grows at most during each kind of work; NaN if unknown."""
    try:
        # Large blocks shall come from the system and go back at once: no reserves, no holes.
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**16)
    except (OSError, AttributeError):
        return defaultdict(lambda: float("nan"))
    return {name: peak_growth(function) for name, function in make_work(*size).items()}


def peak_growth(function: Callable[[], None]) -> float:
    """Bytes by which the process grows at most while a function runs again; NaN if unknown."""
    function()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
        before = _memory("VmRSS")
        function()
        return _memory("VmHWM") - before
    except OSError:
        return float("nan")


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def in_fresh_process(function: Callable, *arguments: object) -> dict[str, float]:
    """The result of a function in a process of its own, on one thread."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (1,)) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Prints a line per algorithm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    arguments = parser.parse_args()

    size = (arguments.layers, arguments.sparsity, arguments.dtype)
    seconds = in_fresh_process(measure_times, size, arguments.rounds)
    memory = in_fresh_process(measure_memory, size)
    num_parameters = arguments.layers * sum(rows * columns for rows, columns in SHAPES)
    print(f"mask update of {num_parameters / 1e6:.0f} million {arguments.dtype} weights, "
          f"sparsity {arguments.sparsity}, one thread, torch {torch.__version__}")  # fmt: skip
    print(f"torch.topk: {seconds['torch.topk']:.2f} s, {memory['torch.topk'] / 2**20:.0f} MiB")
    print(f"{'over torch.topk':<16}{'time':>7}{'limit':>7}{'memory':>8}{'limit':>7}")
    for name in list(seconds)[1:]:
        print(
            f"{name:<16}{seconds[name] / seconds['torch.topk']:>7.2f}{TIME_LIMIT:>7.2f}"
            f"{memory[name] / memory['torch.topk']:>8.2f}{MEMORY_LIMIT:>7.2f}"
        )


if __name__ == "__main__":
    main()
