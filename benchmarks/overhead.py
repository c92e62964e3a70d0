"""Cost of sparse training between mask updates, as ratios to the dense step.

    python -m benchmarks.overhead [--rounds 10]

One process, one thread, CPU time, medians. The variants take turns of a few steps each, so that a
busy machine slows all alike and each finds its own data in the cache, as it does in training. After
every step, outside the timed part, weights, momentum and gradients are checked to be zero where the
mask is. Where cerebras-pytorch is installed, its algorithms take their turns too.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static

WIDTH, BATCH, SPARSITY = 1024, 256, 0.9
STEPS_PER_TURN = 6
NEVER = {"freq": 10**9, "start": 10**9}
LIMITS = {"Static": 1.10, "SET": 1.12, "RigL": 1.12}

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


def is_masked(step: Step) -> bool:
    """Whether weights, momentum and gradients are zero where the masks are.

    A dense model is read in the same way, so that the check leaves all variants' caches alike.
    """
    model, optimizer = step.model, step.optimizer  # type: ignore[attr-defined]
    num_wrong = 0
    for layer in (model[0], model[2]):
        mask = getattr(layer, "weight_mask", torch.zeros_like(layer.weight, dtype=torch.bool))
        absent = ~mask
        momentum = optimizer.state[layer.weight]["momentum_buffer"]
        for tensor in (layer.weight, momentum, layer.weight.grad):
            num_wrong += int(tensor[absent].count_nonzero())
    return num_wrong == 0


def reference_steps() -> dict[str, Step]:
    """Steps of cerebras-pytorch, where it is installed."""
    try:
        found = importlib.util.find_spec("cerebras.pytorch")
    except ModuleNotFoundError:
        found = None
    if found is None:
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


def measure(steps: dict[str, Step], num_rounds: int) -> tuple[dict[str, float], set[str]]:
    """Median CPU seconds of a step of each variant, and the variants once found unmasked."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    unmasked = set()
    for turn in range(num_rounds + 1):
        for name, step in steps.items():
            for index in range(STEPS_PER_TURN):
                start = time.process_time()
                step()
                seconds = time.process_time() - start
                if turn and index:  # the first of a turn fills the cache
                    times[name].append(seconds)
                if not is_masked(step) and name in LIMITS:
                    unmasked.add(name)
    return {name: statistics.median(values) for name, values in times.items()}, unmasked


def main() -> None:
    """Prints a line per variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="turns of each variant")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    steps = {
        "dense": make_step(None),
        "Static": make_step(Static(sparsity=SPARSITY, seed=0)),
        "SET": make_step(SET(sparsity=SPARSITY, update=NEVER, seed=0)),
        "RigL": make_step(RigL(sparsity=SPARSITY, update=NEVER, seed=0)),
    }
    reference = reference_steps()
    seconds, unmasked = measure(steps | reference, arguments.rounds)
    print(f"2 x {WIDTH}^2 MLP, batch {BATCH}, SGD momentum 0.9, sparsity {SPARSITY}, one thread, "
          f"no update due, torch {torch.__version__}")  # fmt: skip
    print(f"dense step: {1e3 * seconds['dense']:.1f} ms of CPU time")
    print(f"{'over dense':<16}{'ratio':>7}{'limit':>7}  zero where masked, after every step")
    for name in list(seconds)[1:]:
        ratio = seconds[name] / seconds["dense"]
        if name in LIMITS:
            masked = "no" if name in unmasked else "yes"
            print(f"{name:<16}{ratio:>7.3f}{LIMITS[name]:>7.2f}  {masked}")
        else:
            print(f"{name:<16}{ratio:>7.3f}")
    if not reference:
        print("cerebras-pytorch is not installed: nothing to compare with")


if __name__ == "__main__":
    main()
