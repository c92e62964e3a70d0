"""Cost of sparse training between mask updates, as ratios to the dense step.

One process, one thread; the variants take turns, so that a busy machine slows all alike, and CPU
time is counted, not wall time. Run: ``python benchmarks/overhead.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static
from sparse_lib.masks import make_mask_drop_minimum, make_mask_grow_maximum, make_mask_topk_sparsity

WIDTH, BATCH, SPARSITY = 1024, 256, 0.9
NEVER = {"freq": 10**9, "start": 10**9}
LIMITS = {"Static": 1.10, "SET": 1.12, "RigL": 1.12}
ON_RECORD = {"Static": 1.75, "SET": 6.4, "RigL": 6.8}  # cerebras-pytorch 2.10 on one CPU core

Step = Callable[[], None]


def make_step(algorithm: object | None) -> Step:
    """One training step of a 2 x 1024^2 perceptron under SGD with momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)
    )
    inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if algorithm is not None:
        algorithm.apply(model)  # type: ignore[attr-defined]
        algorithm.apply(optimizer)  # type: ignore[attr-defined]

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    step.model, step.optimizer = model, optimizer  # type: ignore[attr-defined]
    return step


def masked_everywhere(step: Step) -> bool:
    """Whether weights and momentum are zero where the masks are."""
    model, optimizer = step.model, step.optimizer  # type: ignore[attr-defined]
    for layer in (model[0], model[2]):
        absent = ~layer.weight_mask
        momentum = optimizer.state[layer.weight]["momentum_buffer"]
        if layer.weight[absent].any() or momentum[absent].any():
            return False
    return True


def medians(work: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each piece of work, all interleaved."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 3):
        for name, run in work.items():
            start = time.process_time()
            run()
            if turn >= 3:  # the first turns fill caches and optimizer states
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def reference_steps() -> dict[str, Step]:
    """Steps of cerebras-pytorch, where it is installed."""
    if importlib.util.find_spec("cerebras") is None:
        return {}
    import cerebras.pytorch as cstorch

    algorithms = {
        "Static": cstorch.sparse.Static(sparsity=SPARSITY),
        "SET": cstorch.sparse.SET(sparsity=SPARSITY, update={"freq": 10**9}),
        "RigL": cstorch.sparse.RigL(sparsity=SPARSITY, update={"freq": 10**9}),
    }
    steps = {}
    for name, algorithm in algorithms.items():
        steps[f"cstorch {name}"] = make_step(algorithm)
        algorithm.initialize()
    return steps


def mask_work(numel: int) -> dict[str, Step]:
    """A RigL mask update (drop and grow) and one top-k mask, beside ``torch.topk``."""
    weight, gradient = torch.randn(numel).abs_(), torch.randn(numel).abs_()
    keep = round((1 - SPARSITY) * numel)
    mask = make_mask_topk_sparsity(weight, SPARSITY)

    def drop_and_grow() -> None:
        kept, count = make_mask_drop_minimum(weight, mask, 0.3)
        make_mask_grow_maximum(gradient, kept, SPARSITY, count)

    return {
        "torch.topk": lambda: torch.topk(weight, keep, sorted=False) and None,
        "top-k mask": lambda: make_mask_topk_sparsity(weight, SPARSITY) is None,
        "drop and grow": drop_and_grow,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="timed steps per variant")
    parser.add_argument("--mask-numel", type=int, default=4 * 1024**2, help="weights per tensor")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    steps = {
        "dense": make_step(None),
        "Static": make_step(Static(sparsity=SPARSITY, seed=0)),
        "SET": make_step(SET(sparsity=SPARSITY, update=NEVER, seed=0)),
        "RigL": make_step(RigL(sparsity=SPARSITY, update=NEVER, seed=0)),
        **reference_steps(),
    }
    result = medians(steps, arguments.rounds)
    print(f"2 x {WIDTH}^2 MLP, batch {BATCH}, SGD momentum, one thread, no update due")
    print(f"torch {torch.__version__}, numpy {np.__version__}, {arguments.rounds} steps each")
    print(f"dense step {1e3 * result['dense']:.1f} ms of CPU time")
    print(f"{'variant':<16}{'ratio':>7}{'limit':>7}{'cerebras-pytorch 2.10, on record':>38}")
    for name in list(steps)[1:]:
        enforced = (
            "" if name.startswith("cstorch") or masked_everywhere(steps[name]) else " NOT MASKED"
        )
        limit, known = LIMITS.get(name), ON_RECORD.get(name)
        print(
            f"{name:<16}{result[name] / result['dense']:>7.3f}"
            f"{limit or float('nan'):>7.2f}{known or float('nan'):>38.2f}{enforced}"
        )
    result = medians(mask_work(arguments.mask_numel), max(5, arguments.rounds // 10))
    print(f"mask update of one tensor of {arguments.mask_numel} weights, over torch.topk (limit 1)")
    for name in ("top-k mask", "drop and grow"):
        print(f"{name:<16}{result[name] / result['torch.topk']:>7.3f}")


if __name__ == "__main__":
    main()
