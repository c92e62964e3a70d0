"""Steps of the trainer, in each precision and compiled, that take turns with a plain loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

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
Step = Callable[[], None]


def of_trainer(spec: RunSpec, folder: Path, way: str = "plain") -> Step:
    """A step as the loop of this repository takes it, without its logs and validations."""
    recipe = spec.recipe.model_copy(update=WAYS[way])
    spec = spec.model_copy(update={"recipe": recipe})
    trainer = training.Trainer(spec, data_dir=folder, state_dir=folder / f"{spec.method}-{way}")
    trainer.model.train()
    return lambda: trainer.step() and None


def compare(steps: dict[str, Step], plain: Step, title: str = "") -> None:
    """Print the median CPU seconds of each step over those of a plain loop, interleaved."""
    steps = {**steps, "loop": plain}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(STEPS + WARM):
        for name in sorted(steps, reverse=bool(number % 2)):
            start = time.thread_time()
            steps[name]()
            if number >= WARM:
                seconds[name].append(time.thread_time() - start)
    found = {name: statistics.median(own) for name, own in seconds.items()}
    for name in steps:
        if name != "loop":
            limit = f"  limit {LIMIT}" if name == "plain" else ""
            ratio = f"{found[name] / found['loop']:.3f} x plain loop"
            print(f"{title}{name:8} {ratio}, {STEPS} steps interleaved{limit}", flush=True)
