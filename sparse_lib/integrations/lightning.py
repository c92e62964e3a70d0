"""Sparse training with Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from sparse_lib.integrations import common, trackers


class SparsityCallback(Callback):
    """Trains a ``LightningModule`` sparsely: ``Trainer(callbacks=[SparsityCallback(config)])``.

    The masks are made before Lightning places the model and builds the optimizers, of which the
    first that holds sparse weights updates them. Each checkpoint holds the masks (in the model's
    part) and the algorithm's state (in the callback's), so ``trainer.fit(ckpt_path=...)`` goes on
    with the same bits. Steps are optimizer steps, also with gradient accumulation; ranks hold the
    same masks.

    Args:
        config: What :func:`sparse_lib.configure` takes: a number, a dict, a list of dicts, or an
            algorithm.
        log: Whether the numbers of ``algorithm.metrics()`` are logged as ``sparsity/...``, every
            ``log_every_n_steps`` steps; the sparsity also stands in the progress bar.
        tracker: Also send them to ``"tensorboard"``, ``"trackio"`` or ``"wandb"``, whatever the
            Trainer's loggers are; files are in ``sparsity`` in ``default_root_dir``.

    Attributes:
        algorithm: The algorithm, a ``Group`` unless it was applied before.

    Raises:
        ValueError: If the config is not allowed.
        TypeError: If it has a wrong type.
    """

    def __init__(self, config: Any, *, log: bool = True, tracker: str | None = None) -> None:
        trackers.check_tracker(tracker)
        self.algorithm = common.as_algorithm(config)
        self.log, self.tracker = log, tracker
        self._open: trackers.Tracker | None = None
        self._logged_at = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make the masks, so that a checkpoint may be loaded next."""
        if stage == "fit" and not common.is_masked_by(self.algorithm, pl_module):
            self.algorithm.apply(pl_module)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Enforce the masks in the optimizer's steps.

        Raises:
            ValueError: If no optimizer holds a sparse weight.
        """
        if self.algorithm.drives_optimizer:
            return
        for optimizer in trainer.optimizers:
            if self.algorithm.get_sparse_params(optimizer):
                self.algorithm.apply(optimizer)
                return
        raise ValueError("no optimizer of the LightningModule holds a weight that was sparsified")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log the metrics."""
        step = trainer.global_step
        if step == 0 or step % trainer.log_every_n_steps or step == self._logged_at:
            return
        self._logged_at = step
        metrics = common.summary(self.algorithm)
        if self.log:
            pl_module.log("sparsity/sparsity", metrics.pop("sparsity/sparsity"), prog_bar=True)
            pl_module.log_dict(metrics)
        if self.tracker is not None and trainer.is_global_zero:
            if self._open is None:
                folder = Path(trainer.default_root_dir) / "sparsity"
                self._open = trackers.open_tracker(self.tracker, folder, first_step=step)
            self._open.log(trackers.numbers_of(common.summary(self.algorithm)), step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the tracker."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's state; the masks are in the model's."""
        return self.algorithm.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.algorithm.load_state_dict(state_dict)
