"""Tokens per second of sparse training beside dense training, as ratios from one interleaved run.

    python -m benchmarks.gpu [--size 124M] [--rounds 3] [--device auto]

A GPT-2 of the size trains on random tokens in bf16 by the plain loop below: dense, and with each
algorithm, compiled as one graph, and in CUDA graphs too. The loop of `experiments.training` is not
measured here. Variants take turns of a few steps, so that clocks and neighbours slow all alike;
ratios are medians over the rounds. Without a GPU the CPU twin runs: the same code on a small model,
as one graph that nothing compiles, whose ratios say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from experiments.training.device import gpu_facts, resolve
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static

#: hidden size, layers, heads, context, samples per step, vocabulary.
SIZES = {"124M": (768, 12, 12, 1024, 16, 50304), "tiny": (64, 2, 2, 64, 8, 512)}
SPARSITY, STEPS_PER_TURN = 0.8, 5
NEVER = {"freq": 10**9, "start": 10**9}
VARIANTS: dict[str, Callable[[], Any]] = {
    "dense": lambda: None,
    "static": lambda: Static(SPARSITY),
    "rigl": lambda: RigL(SPARSITY, update=NEVER),
    "rigl-100": lambda: RigL(SPARSITY, update={"freq": 100}),
    "set-100": lambda: SET(SPARSITY, update={"freq": 100}),
}
#: Variants that run in CUDA graphs, too.
GRAPHS = ("dense", "rigl-100")
#: Ratios to dense that the project wants on an H100 at 124M, and milliseconds of a mask update.
WANTED, WANTED_UPDATE = {"static": 1 / 1.03, "rigl": 1 / 1.03}, 100


def make_step(name: str, size: str, device: torch.device, mode: str) -> Callable[[], None]:
    """One optimizer step of a variant, under a mode of ``torch.compile``."""
    from transformers import GPT2Config, GPT2LMHeadModel

    width, layers, heads, context, samples, vocabulary = SIZES[size]
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, n_positions=context, vocab_size=vocabulary,
        use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device)
    algorithm = VARIANTS[name]()
    if algorithm is not None:
        algorithm.apply(model)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=fused or None)
    if algorithm is not None:
        algorithm.apply(optimizer)
    how = {"mode": mode} if fused else {"backend": "eager"}
    runner = torch.compile(model, fullgraph=True, **how)
    batch = torch.randint(vocabulary, (samples, context + 1)).to(device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            logits = runner(input_ids=batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def turn(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Seconds per step."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - start) / steps


def main() -> None:
    """Print one line per variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve(options.device)
    on_gpu = device.type == "cuda"
    size = options.size or ("124M" if on_gpu else "tiny")
    steps = {name: make_step(name, size, device, "default") for name in VARIANTS}
    for name in GRAPHS if on_gpu else ():
        steps[f"{name} graphs"] = make_step(name, size, device, "reduce-overhead")
    for step in steps.values():
        turn(step, 3, device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            # A hundred steps hold exactly one update of the last variants.
            number = STEPS_PER_TURN if not on_gpu else 100 if "-100" in name else 20
            times[name].append(turn(step, number, device))
    facts = gpu_facts(device)
    print(f"{facts or 'CPU twin: no statement about a GPU'}; size {size}, bf16, one graph")
    for name, values in times.items():
        ratio = statistics.median(d / v for d, v in zip(times["dense"], values, strict=True))
        goal = f", wanted {WANTED[name]:.2f} on an H100" if name in WANTED else ""
        speed = 1 / statistics.median(values)
        print(f"{name:15} {speed:8.2f} steps/s  {ratio:.3f} of dense{goal}")
    if on_gpu:
        for name, between in (("rigl-100", "rigl"), ("set-100", "static")):
            more = (b - a for a, b in zip(times[between], times[name], strict=True))
            ms = 1e5 * statistics.median(more)
            print(f"{name}: an update takes {ms:.0f} ms, wanted {WANTED_UPDATE}")


if __name__ == "__main__":
    main()
