"""Numbers of a training to TensorBoard, trackio or Weights & Biases, under one name each."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch.optim import Optimizer

from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.optimizers import innermost
from sparse_lib.integrations import common

TRACKERS = ("tensorboard", "trackio", "wandb")


class Tracker(Protocol):
    """Where numbers go."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Take numbers of an optimizer step; steps rise."""

    def close(self) -> None:
        """Write what is left."""


def open_tracker(
    name: str,
    folder: str | Path,
    *,
    run: str | None = None,
    config: Mapping[str, Any] | None = None,
    first_step: int = 0,
) -> Tracker:
    """Open a tracker.

    Args:
        name: One of :data:`TRACKERS`. ``trackio`` and ``wandb`` read their own environment
            variables (``TRACKIO_DIR``, ``WANDB_MODE``, ...).
        folder: Of the files; its own for each run. TensorBoard shows all runs below a folder.
        run: Name of the run; None takes the folder's.
        config: Settings to show beside the run.
        first_step: Step at which the run goes on; TensorBoard drops what a run that was killed
            logged from there on.

    Raises:
        ValueError: If there is no such tracker, or its package is not installed.
    """
    check_tracker(name)
    folder = Path(folder)
    if name == "tensorboard":
        return _TensorBoard(folder, first_step)
    return _Runs(name, folder, run or folder.name, config)


def check_tracker(name: str | None) -> None:
    """Raise ``ValueError`` for a name that is neither None nor one of :data:`TRACKERS`."""
    if name is not None and name not in TRACKERS:
        raise ValueError(f"tracker must be one of {', '.join(TRACKERS)}, not {name!r}")


class _TensorBoard:
    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(_missing("tensorboard")) from None
        purge = {"purge_step": first_step} if first_step else {}
        self._writer = SummaryWriter(str(folder), **purge)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Runs:
    """trackio, and Weights & Biases, whose three functions it has."""

    def __init__(self, name: str, folder: Path, run: str, config: Mapping[str, Any] | None) -> None:
        try:
            self._module = importlib.import_module(name)
        except ImportError:
            raise ValueError(_missing(name)) from None
        options: dict[str, Any] = {}
        if name == "wandb":
            folder.mkdir(parents=True, exist_ok=True)
            options["dir"] = str(folder)
        self._module.init(project="sparse-training", name=run, config=dict(config or {}), **options)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._module.log(dict(numbers), step=step)

    def close(self) -> None:
        self._module.finish()


def _missing(name: str) -> str:
    return f"tracker {name!r} needs the package {name}, which is not installed: pip install {name}"


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """What of some values is a finite number."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class Follower:
    """Follows the steps of an optimizer: metrics of its algorithm to a tracker, and a bar.

    Args:
        algorithm: Applied to the model and to the optimizer.
        optimizer: The optimizer.
        tracker: What :func:`open_tracker` takes, or None.
        folder: See :func:`open_tracker`.
        every: Optimizer steps between two points.
        num_steps: Length of a progress bar (tqdm), which is drawn on a terminal only; None draws
            none.

    Raises:
        ValueError: If the tracker is unknown or not installed, or ``every`` is below 1.
    """

    def __init__(
        self,
        algorithm: SparsityAlgorithm,
        optimizer: Optimizer,
        tracker: str | None = None,
        folder: str | Path = "runs/sparsity",
        *,
        every: int = 50,
        num_steps: int | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every!r}")
        self.algorithm, self.every = algorithm, every
        step = algorithm.step
        self._tracker = open_tracker(tracker, folder, first_step=step + 1) if tracker else None
        self._bar = progress_bar(num_steps, step) if num_steps else None
        self._seen = step
        self._handle = innermost(optimizer).register_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        step = self.algorithm.step
        if step == self._seen:  # loss scaling skipped it
            return
        self._seen = step
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
        if step % self.every:
            return
        numbers = common.summary(self.algorithm)
        if self._bar is not None:
            self._bar.set_postfix(sparsity=f"{numbers['sparsity/sparsity']:.3f}")
        if self._tracker is not None:
            self._tracker.log(numbers_of(numbers), step)

    def close(self) -> None:
        """Stop following."""
        self._handle.remove()
        for part in (self._bar, self._tracker):
            if part is not None:
                part.close()


def progress_bar(num_steps: int, done: int = 0, **options: Any) -> Any:
    """A tqdm bar over optimizer steps, or None where stderr is no terminal or tqdm is missing."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=num_steps, initial=done, unit="step", dynamic_ncols=True, **options)
