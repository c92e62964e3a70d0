"""Tokens per second of the project's training loop beside a plain loop, on the same model and text.

    python -m benchmarks.gpu_loop [--size 124M] [--rounds 3] [--device auto] [--together 4]

Both train a dense GPT-2 in bf16 with fused AdamW, compiled on a GPU, and take turns as whole
trainings; what counts are the steps of the second half, after compiling. The plain loop does what
a minimal one does: random windows of a memory map, pinned, autocast, clipping. With ``--together
N``, N processes then train the small model at once, as ``--resources gpu=N`` starts them, and their
tokens per second are set beside those of one. Without a GPU the CPU twin runs: the same code on a
small model, whose ratios say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from experiments import models
from experiments.specs.expand import load_single
from experiments.training.device import gpu_facts, resolve

#: hidden size, layers, heads, context, samples per step, steps.
SIZES = {
    "124M": (768, 12, 12, 1024, 16, 200),
    "5M": (256, 6, 4, 256, 32, 400),
    "tiny": (64, 2, 2, 64, 16, 60),
}
WANTED = 0.95


def describe(size: str, device: torch.device) -> dict[str, Any]:
    """The YAML of one run."""
    width, layers, heads, context, samples, steps = SIZES[size]
    return {
        "model": {
            "name": "gpt2", "label": "timed", "hidden_size": width, "num_layers": layers,
            "num_heads": heads,
        },
        "data": {"name": "wikipedia-start", "vocab_size": 257, "context": context},
        "recipe": {
            "tokens": steps * samples * context, "batch_size": samples, "learning_rate": 3e-4,
            "validations": 1, "validation_tokens": samples * context, "fused": True,
            "precision": "bf16", "compile": device.type == "cuda",
        },
    }  # fmt: skip


def ours(params: Path, folder: Path, device: torch.device) -> subprocess.Popen:
    """Start the project's training of a YAML file as a process of its own."""
    command = [sys.executable, "-m", "experiments", "run", "--params", str(params)]
    command += ["--model_dir", str(folder), "--device", str(device)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def rate_of(process: subprocess.Popen, folder: Path) -> float:
    """Tokens per second of the second half of a training that was started."""
    _, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"the training failed: {error.strip().splitlines()[-1]}")
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    curve = [(row["tokens"], row["elapsed_s"]) for row in rows if row["kind"] == "train"]
    (first, start), (last, end) = curve[len(curve) // 2], curve[-1]
    return (last - first) / (end - start)


def plain(params: Path, device: torch.device) -> float:
    """Tokens per second of the second half of a plain loop."""
    spec = load_single(params, run_id="plain")
    meta = json.loads(
        Path("resources/data", spec.data.label, "meta.json").read_text(encoding="utf-8")
    )
    text = np.memmap(Path("resources/data", spec.data.label, "train.bin"), np.uint16, "r")
    sizes, recipe, context = dict(spec.model), spec.recipe, spec.data.context
    module = models.get(sizes.pop("name"))
    del sizes["label"]
    torch.manual_seed(0)
    if device.type == "cpu":
        torch.set_num_threads(1)  # as many as the project's loop has
    model = module.build(
        module.Config(**sizes), vocab_size=meta["vocab_size"], context=context, eos_id=0
    ).to(device)
    runner = torch.compile(model) if recipe.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    rng, on_gpu = np.random.default_rng(0), device.type == "cuda"

    def wait() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    half, start = recipe.steps // 2, 0.0
    for step in range(recipe.steps):
        if step == half:
            start = wait()
        places = rng.integers(0, len(text) - context - 1, recipe.batch_size)
        windows = np.stack([text[place : place + context + 1] for place in places])
        batch = torch.from_numpy(windows.astype(np.int64))
        batch = batch.pin_memory().to(device, non_blocking=True) if on_gpu else batch
        with torch.autocast(device.type, torch.bfloat16):
            logits = runner(input_ids=batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return (recipe.steps - half) * recipe.batch_size * context / (wait() - start)


def main() -> None:
    """Print the ratio, then that of several trainings at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--together", type=int, default=4)
    options = parser.parse_args()
    device = resolve(options.device)
    on_gpu = device.type == "cuda"
    size = options.size or ("124M" if on_gpu else "tiny")
    print(f"{gpu_facts(device) or 'CPU twin: no statement about a GPU'}; size {size}, bf16")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        params = folder / "run.yaml"
        params.write_text(yaml.safe_dump(describe(size, device)))
        rates = []
        for turn in range(options.rounds):
            out = folder / f"turn{turn}"
            rates.append((rate_of(ours(params, out, device), out), plain(params, device)))
        ratio = statistics.median(mine / other for mine, other in rates)
        loop, bare = (statistics.median(column) for column in zip(*rates, strict=True))
        print(
            f"loop {loop:,.0f} tokens/s, plain loop {bare:,.0f}: {ratio:.3f}, wanted {WANTED} on "
            "an H100"
        )
        if options.together > 1:
            params.write_text(yaml.safe_dump(describe("5M" if on_gpu else "tiny", device)))
            alone = rate_of(ours(params, folder / "alone", device), folder / "alone")
            outs = [folder / f"together{index}" for index in range(options.together)]
            started = [ours(params, out, device) for out in outs]
            total = sum(rate_of(p, out) for p, out in zip(started, outs, strict=True))
            print(
                f"small model: one {alone:,.0f} tokens/s, {options.together} at once {total:,.0f} "
                f"together: {total / alone:.2f} times one"
            )


if __name__ == "__main__":
    main()
