"""Speed of the skipping execution against dense torch, as ratios.

    python benchmarks/device.py [--shapes 512x512,512x2048] [--tokens 1024] [--threads 1] [--json F]

One layer's training step (forward, input gradient, weight gradient, autograd, packing and the
scatter into the dense gradient included) of a compiled layer over that of a dense `nn.Linear` in
float32. Samples of both are interleaved in one process. The clock is the CPU time of the process,
which leaves out pre-emption but not polluted caches; with several threads it is their sum.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from sparse_lib.device.backend import backend, compile
from sparse_lib.device.kernels import num_lanes

SPARSITIES = (0.5, 0.8, 0.9, 0.95)


def median_times(functions: Sequence[Callable[[], None]], num_samples: int) -> list[float]:
    """Median CPU seconds of each function, their samples interleaved."""
    times: list[list[float]] = [[] for _ in functions]
    for sample in range(num_samples + 1):
        for function, record in zip(functions, times, strict=True):
            start = time.process_time()
            function()
            if sample:  # the first round warms up
                record.append(time.process_time() - start)
    return [statistics.median(record) for record in times]


def training_step(layer: Callable, parameters: list, tokens: int, inputs: int, outputs: int):
    """A function that runs forward and backward once."""
    source = torch.randn(tokens, inputs, requires_grad=True)
    gradient = torch.randn(tokens, outputs)

    def step() -> None:
        for tensor in (source, *parameters):
            tensor.grad = None
        layer(source).backward(gradient)

    return step


def measure(inputs: int, outputs: int, tokens: int, num_samples: int) -> list[dict]:
    """One record per sparsity for one layer shape."""
    torch.manual_seed(0)
    dense = nn.Linear(inputs, outputs)
    steps = [training_step(dense, list(dense.parameters()), tokens, inputs, outputs)]
    for sparsity in SPARSITIES:
        layer = nn.Linear(inputs, outputs)
        layer.register_buffer("weight_mask", torch.rand(outputs, inputs) >= sparsity)
        twin = compile(layer, backend("skip", strict=True))
        steps.append(training_step(twin, list(layer.parameters()), tokens, inputs, outputs))
    dense_s, *sparse_s = median_times(steps, num_samples)
    return [
        {
            "inputs": inputs,
            "outputs": outputs,
            "tokens": tokens,
            "sparsity": sparsity,
            "dense_s": dense_s,
            "skip_s": skip_s,
            "speedup": dense_s / skip_s,
        }
        for sparsity, skip_s in zip(SPARSITIES, sparse_s, strict=True)
    ]


def main() -> None:
    """Prints one line of speed-ups per shape and their medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="512x512,512x2048,2048x512", help="inputs x outputs")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the records to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    print(f"layer step, skip over dense float32: {num_lanes()} floats per vector, "
          f"{arguments.tokens} tokens, {arguments.threads} thread(s)")  # fmt: skip
    print(f"{'shape':>12}" + "".join(f"{sparsity:>8.0%}" for sparsity in SPARSITIES))
    records = []
    for shape in arguments.shapes.split(","):
        inputs, outputs = map(int, shape.split("x"))
        rows = measure(inputs, outputs, arguments.tokens, arguments.samples)
        print(f"{shape:>12}" + "".join(f"{row['speedup']:>7.2f}x" for row in rows), flush=True)
        records += rows
    medians = [
        statistics.median(row["speedup"] for row in records if row["sparsity"] == sparsity)
        for sparsity in SPARSITIES
    ]
    print(f"{'median':>12}" + "".join(f"{value:>7.2f}x" for value in medians))
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
