"""Who watches a run while it trains: a tracker of its rows, and a progress bar on a terminal."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from sparse_lib.integrations.trackers import progress_bar

TRACKERS = ("tensorboard", "trackio", "wandb")
#: What else a row holds: where it belongs, not a measurement.
PLACE = ("kind", "step")


class Watch:
    """Gets the rows of a run's curve as they are written, and its steps.

    No result depends on it, and a tracker that fails is let go of with a message.

    Args:
        tracker: ``tensorboard``, ``trackio`` or ``wandb``; None for none.
        folder: Of the tracker's files, for this run alone.
        bar: Whether to draw a progress bar, if standard error is a terminal.

    Raises:
        UserError: If the tracker is unknown.
    """

    def __init__(self, tracker: str | None, folder: Path, *, bar: bool = False) -> None:
        if tracker is not None and tracker not in TRACKERS:
            raise UserError(f"track must be one of {', '.join(TRACKERS)}, not {tracker!r}")
        self.tracker, self.folder, self.wants_bar = tracker, folder, bar
        self._open: tuple[Callable[..., Any], Callable[[], Any]] | None = None
        self._bar: Any = None

    def begin(self, run: str, spec: Mapping[str, Any], step: int, steps: int) -> None:
        """Start at a step, which is above 0 where an interrupted run goes on.

        Raises:
            UserError: If the tracker is not installed.
        """
        if self.tracker is not None:
            self._open = _opened(self.tracker, self.folder, run, spec, step)
        if self.wants_bar:
            self._bar = progress_bar(steps, step, desc=run)

    @property
    def has_bar(self) -> bool:
        """Whether a bar shows the progress, so that lines need not."""
        return self._bar is not None

    def step(self, step: int, loss: Any) -> None:
        """An optimizer step is done; ``loss`` is shown where it is known without waiting."""
        if self._bar is None:
            return
        if isinstance(loss, float):
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def row(self, row: Mapping[str, Any]) -> str | None:
        """Take a row of the curve; returns what is wrong with the tracker, the first time."""
        if self._open is None:
            return None
        values = {key: value for key, value in row.items() if key not in PLACE}
        numbers = {
            f"{row['kind']}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        try:
            self._open[0](numbers, step=row["step"])
        except Exception as error:
            self._open = None
            return f"the tracker {self.tracker} failed and gets no more: {error}"
        return None

    def close(self) -> None:
        """Let the tracker write what is left, and end the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._open is not None:
            self._open[1]()
            self._open = None


def _opened(
    tracker: str, folder: Path, run: str, spec: Mapping[str, Any], step: int
) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """What takes numbers at a step, and what ends it."""
    try:
        if tracker != "tensorboard":
            module = importlib.import_module(tracker)
            folder.mkdir(parents=True, exist_ok=True)
            options = {"dir": str(folder)} if tracker == "wandb" else {}
            module.init(project="sparse-lib", name=run, config=dict(spec), **options)
            return module.log, module.finish
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(f"track: {tracker} is not installed: pip install {tracker}") from None
    # TensorBoard drops what a run that was killed logged after its last state.
    writer = SummaryWriter(str(folder), **({"purge_step": step + 1} if step else {}))

    def log(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return log, writer.close
