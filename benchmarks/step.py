"""A training step of each task beside a plain torch loop on the same model and data.

All take turns in one process on one thread, and CPU time is counted, so that a busy machine slows
all alike. The trainer's own overhead is the first row; the others are its step with
`torch.compile`, in bfloat16, and with both. Run: ``python -m benchmarks.step language`` or
``vision``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from experiments import data, tasks
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from experiments.training import loop as training

LIMIT = 1.1
STEPS, WARM = 15, 3
WAYS = {
    "plain": {},
    "compile": {"compile": True},
    "bf16": {"precision": "bf16"},
    "both": {"compile": True, "precision": "bf16"},
}
Step = Callable[[], object]
Batches = tuple[int, Callable[[np.ndarray], tuple[torch.Tensor, torch.Tensor]]]


def make_spec(task: str, width: int | None = None) -> RunSpec:
    """The dense network of the quick scale, if it is a Llama at another width."""
    runs = study_runs(load_study(f"sparse_ift_{task}"), "quick")
    spec = next(run.spec for run in runs if run.spec.method == "dense")
    if width is None:
        return spec
    sizes = {"hidden_size": width, "intermediate_size": width * 43 // 16}
    return spec.model_copy(update={"model": spec.model.model_copy(update=sizes)})


def windows(spec: RunSpec, folder: Path) -> Batches:
    """How many windows of tokens there are, and inputs and targets of some of them."""
    tokens = np.asarray(data.load(folder).tokens("train"), dtype=np.int64)
    length = spec.data.context + 1

    def batch(chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.from_numpy(np.stack([tokens[i * length : (i + 1) * length] for i in chosen]))
        return found[:, :-1], found[:, 1:].flatten()

    return len(tokens) // length, batch


def images(spec: RunSpec, folder: Path) -> Batches:
    """How many images there are, and normalised pixels and labels of some of them."""
    found = data.load(folder)
    split, mean, std = found.split("train"), found.meta["mean"][0], found.meta["std"][0]
    pixels, labels = torch.tensor(split.pixels), torch.tensor(split.labels)

    def batch(chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return (pixels[chosen].float() / 255 - mean) / std, labels[chosen]

    return len(labels), batch


def make_plain(spec: RunSpec, folder: Path) -> Step:
    """The same by hand: model, optimizer, clipping, cosine, shuffled batches."""
    recipe = spec.recipe
    torch.manual_seed(spec.seed)
    model = tasks.get(spec.task).Task(spec, folder).build_model().train()
    settings = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if spec.task == "lm":
        number, batch = windows(spec, folder)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), betas=recipe.betas, eps=recipe.eps, fused=True, **settings
        )
    else:
        number, batch = images(spec, folder)
        optimizer = torch.optim.SGD(
            model.parameters(), momentum=recipe.momentum, nesterov=recipe.nesterov, **settings
        )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    order = np.random.default_rng(0).permutation(number)
    loss_of = torch.nn.CrossEntropyLoss()
    done = 0

    def step() -> None:
        nonlocal done
        inputs, targets = batch(order[done : done + recipe.batch_size])
        done += recipe.batch_size
        logits = model(inputs).logits
        loss = loss_of(logits.view(-1, logits.shape[-1]), targets)
        optimizer.zero_grad()
        loss.backward()
        if recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def make_step(spec: RunSpec, folder: Path, way: str) -> Step:
    """A step as the loop of this repository takes it, without its logs and validations."""
    recipe = spec.recipe.model_copy(update=WAYS[way])
    spec = spec.model_copy(update={"recipe": recipe})
    trainer = training.Trainer(spec, data_dir=folder)
    trainer.model.train()
    return trainer.step


def compare(steps: dict[str, Step], title: str) -> None:
    """Print the median CPU seconds of each step over those of ``loop``, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(STEPS + WARM):
        for name in sorted(steps, reverse=bool(number % 2)):
            start = time.thread_time()
            steps[name]()
            if number >= WARM:
                seconds[name].append(time.thread_time() - start)
    found = {name: statistics.median(own) for name, own in seconds.items()}
    for name in [name for name in steps if name != "loop"]:
        limit = f"  limit {LIMIT}" if name == "plain" else ""
        ratio = f"{found[name] / found['loop']:.3f} x plain loop"
        print(f"{title}{name:8} {ratio}, {STEPS} steps interleaved{limit}", flush=True)


def main() -> None:
    """Print each kind of step over the plain loop."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=("language", "vision"))
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256], help="of language")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        section = dict(make_spec(args.task).data)
        sizes = {key: section[key] for key in ("vocab_size", "num_images") if key in section}
        data.prepare(section["name"], out=folder, **sizes)
        for width in args.widths if args.task == "language" else [None]:
            spec = make_spec(args.task, width)
            steps = {way: make_step(spec, folder, way) for way in args.ways}
            title = f"width {width:4} " if width else ""
            compare({**steps, "loop": make_plain(spec, folder)}, title)


if __name__ == "__main__":
    main()
