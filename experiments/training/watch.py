"""Who watches a run while it trains: a tracker of its rows, and a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.errors import refusals
from sparse_lib.integrations.trackers import (
    Tracker,
    check_tracker,
    numbers_of,
    open_tracker,
    progress_bar,
)

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
        with refusals("track"):
            check_tracker(tracker)
        self.tracker, self.folder, self.wants_bar = tracker, folder, bar
        self._open: Tracker | None = None
        self._bar: Any = None

    def begin(self, run: str, spec: Mapping[str, Any], step: int, steps: int) -> None:
        """Start at a step, which is above 0 where an interrupted run goes on.

        Raises:
            UserError: If the tracker is not installed.
        """
        if self.tracker is not None:
            with refusals("track"):
                self._open = open_tracker(
                    self.tracker, self.folder, run=run, config=spec, first_step=step + bool(step)
                )
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
        numbers = {f"{row['kind']}/{name}": value for name, value in numbers_of(values).items()}
        try:
            self._open.log(numbers, row["step"])
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
            self._open.close()
            self._open = None
