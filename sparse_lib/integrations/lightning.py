"""Sparse training with Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from sparse_lib.integrations import common


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
            ``log_every_n_steps`` steps.

    Attributes:
        algorithm: The algorithm, a ``Group`` unless it was applied before.

    Raises:
        ValueError: If the config is not allowed.
        TypeError: If it has a wrong type.
    """

    def __init__(self, config: Any, *, log: bool = True) -> None:
        self.algorithm = common.as_algorithm(config)
        self.log = log
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
        due = trainer.global_step > 0 and trainer.global_step % trainer.log_every_n_steps == 0
        if self.log and due and trainer.global_step != self._logged_at:
            self._logged_at = trainer.global_step
            pl_module.log_dict(common.summary(self.algorithm))

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's state; the masks are in the model's."""
        return self.algorithm.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.algorithm.load_state_dict(state_dict)
