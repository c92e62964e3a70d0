"""A training step of the vision task beside a plain torch loop on the same model and data.

Both take turns in one process on one thread, and CPU time is counted, so that a busy machine slows
both alike. Run: ``python -m benchmarks.vision_step``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from experiments import data
from experiments.specs.expand import Run, study_runs
from experiments.specs.read import load_study
from experiments.training import loop as training

LIMIT = 1.1
STEPS = 20
METHODS = ("dense", "static80")


def run_of(method: str) -> Run:
    """A run of the quick scale."""
    study = load_study("sparse_ift_vision")
    return next(r for r in study_runs(study, "quick") if r.spec.method == method)


def make_trainer(run: Run, folder: Path) -> Callable[[], None]:
    """A step as the loop of this repository takes it, without its logs and validations."""
    trainer = training.Trainer(run.spec, data_dir=folder, state_dir=folder / "state")
    trainer.model.train()
    return lambda: trainer.step() and None


def make_plain(run: Run, folder: Path) -> Callable[[], None]:
    """The same by hand: model, SGD, cosine, shuffled batches of normalised images."""
    from experiments.tasks.vision import Task

    spec, images = run.spec, data.load(folder)
    recipe, split = spec.recipe, images.split("train")
    torch.manual_seed(spec.seed)
    model = Task(spec, folder).build_model().train()
    pixels, labels = torch.from_numpy(split.pixels.copy()), torch.from_numpy(split.labels)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    mean, std = images.meta["mean"][0], images.meta["std"][0]
    loss_of = torch.nn.CrossEntropyLoss()
    order = torch.randperm(len(labels))
    done = 0

    def step() -> None:
        nonlocal done
        chosen = order[done : done + recipe.batch_size]
        done += recipe.batch_size
        inputs = (pixels[chosen].float() / 255 - mean) / std
        loss = loss_of(model(inputs).logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def compare(ours: Callable[[], None], plain: Callable[[], None]) -> float:
    """Ratio of the medians of the CPU seconds of interleaved steps."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for number in range(STEPS + 3):
        for which, step in enumerate((ours, plain) if number % 2 else (plain, ours)):
            start = time.thread_time()
            step()
            if number >= 3:
                seconds[which if number % 2 else 1 - which].append(time.thread_time() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def main() -> None:
    """Print the ratio of each method, and whether the dense one keeps its limit."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = run_of("dense")
        data.prepare("glyphs", out=folder, num_images=run.spec.data.num_images)
        for method in METHODS:
            chosen = run_of(method)
            ratio = compare(make_trainer(chosen, folder), make_plain(run, folder))
            limit = f"  limit {LIMIT}" if method == "dense" else "  (masked dense execution)"
            print(f"{method:10} {ratio:.3f} x plain loop, {STEPS} steps interleaved{limit}")


if __name__ == "__main__":
    main()
