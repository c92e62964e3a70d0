"""A training step of the vision task beside a plain torch loop on the same model and data.

All take turns in one process on one thread, and CPU time is counted, so that a busy machine slows
all alike. The trainer's step is also measured with `torch.compile`, in bfloat16, and with both.
Run: ``python -m benchmarks.vision_step``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks._steps import WAYS, compare, of_trainer
from experiments import data
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec


def make_spec() -> RunSpec:
    """The dense network of the quick scale."""
    runs = study_runs(load_study("sparse_ift_vision"), "quick")
    return next(run.spec for run in runs if run.spec.method == "dense")


def make_plain(spec: RunSpec, folder: Path) -> Callable[[], None]:
    """The same by hand: model, SGD, cosine, shuffled batches of normalised images."""
    from experiments.tasks.vision import Task

    images = data.load(folder)
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


def main() -> None:
    """Print the step in each way over the plain loop."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dense = make_spec()
        data.prepare("glyphs", out=folder, num_images=dense.data.num_images)
        steps = {way: of_trainer(dense, folder, way) for way in WAYS}
        compare(steps, make_plain(dense, folder))


if __name__ == "__main__":
    main()
