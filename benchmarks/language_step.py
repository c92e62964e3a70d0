"""A training step of the language task beside a plain torch loop on the same model and data.

All take turns in one process on one thread, and CPU time is counted, so that a busy machine slows
all alike. The trainer's own overhead is the first row; the others are its step with
`torch.compile`, in bfloat16, and with both. Run: ``python -m benchmarks.language_step``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks._steps import WAYS, compare, of_trainer
from experiments import data
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec


def make_spec(width: int) -> RunSpec:
    """The dense Llama of the quick scale at another width."""
    runs = study_runs(load_study("sparse_ift_language"), "quick")
    spec = next(run.spec for run in runs if run.spec.method == "dense")
    sizes = {"hidden_size": width, "intermediate_size": width * 43 // 16}
    return spec.model_copy(update={"model": spec.model.model_copy(update=sizes)})


def make_plain(spec: RunSpec, folder: Path) -> Callable[[], None]:
    """The same by hand: model, AdamW, clipping, cosine, shuffled windows of the tokens."""
    from experiments.tasks.lm import Task

    recipe = spec.recipe
    torch.manual_seed(spec.seed)
    model = Task(spec, folder).build_model().train()
    tokens = np.asarray(data.load(folder).tokens("train"), dtype=np.int64)
    length = spec.data.context + 1
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    order = np.random.default_rng(0).permutation(len(tokens) // length)
    loss_of = torch.nn.CrossEntropyLoss()
    done = 0

    def step() -> None:
        nonlocal done
        chosen = order[done : done + recipe.batch_size]
        done += recipe.batch_size
        batch = torch.from_numpy(np.stack([tokens[i * length : (i + 1) * length] for i in chosen]))
        logits = model(batch[:, :-1]).logits
        loss = loss_of(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def main() -> None:
    """Print each kind of step over the plain loop."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        section = make_spec(64).data
        data.prepare(section.name, out=folder, vocab_size=section.vocab_size)
        for width in args.widths:
            spec = make_spec(width)
            steps = {name: of_trainer(spec, folder, name) for name in args.ways}
            compare(steps, make_plain(spec, folder), f"width {width:4} ")


if __name__ == "__main__":
    main()
