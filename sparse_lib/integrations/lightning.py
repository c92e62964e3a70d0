"""Sparse training with Lightning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging

from sparse_lib.core.mistakes import warn_of_unreached
from sparse_lib.integrations import common


class SparsityCallback(Callback):
    """Trains a ``LightningModule`` sparsely: ``Trainer(callbacks=[SparsityCallback(config)])``.

    The masks are made before Lightning places the model and builds the optimizers, of which the
    first that holds sparse weights updates them. Each checkpoint holds the masks (in the model's
    part) and the algorithm's state (in the callback's), so ``trainer.fit(ckpt_path=...)`` goes on
    with the same bits. Steps are optimizer steps, also with gradient accumulation; ranks hold the
    same masks. Several callbacks in one Trainer, one per network and optimizer, need different
    ``param_filter`` in their configs.

    Args:
        config: What `sparse_lib.configure` takes, an algorithm too; errors are those of it.
        log: Whether the numbers of ``algorithm.metrics()`` are logged as ``sparsity/...``, every
            ``log_every_n_steps`` steps; the sparsity also stands in the progress bar.

    Attributes:
        algorithm: The algorithm, a ``Group`` unless it was applied before.
    """

    def __init__(self, config: Any, *, log: bool = True) -> None:
        self.algorithm = common.as_algorithm(config)
        self.log = log
        self._filters = ", ".join(_filters(config))
        self._logged_at = self._foreseen = 0

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: that of the class and of the config's filters."""
        own = super().state_key
        return f"{own}[{self._filters}]" if self._filters else own

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make the masks, so that a checkpoint may be loaded next."""
        for callback in trainer.callbacks if stage == "fit" else ():
            if callback is self:
                break
            if isinstance(callback, WeightAveraging):
                raise ValueError(
                    f"SparsityCallback must come before {type(callback).__name__} in callbacks, "
                    "which copies the model, masks too"
                )
        if stage == "fit" and not common.is_masked_by(self.algorithm, pl_module):
            self.algorithm.apply(pl_module)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Enforce the masks in the optimizer's steps; warn if they do not reach their targets."""
        steps = trainer.estimated_stepping_batches
        self._foreseen = int(steps) if steps < float("inf") else 0
        warn_of_unreached(self.algorithm, self._foreseen)
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
        is_new = step not in (0, self._logged_at)
        if not self.log or not is_new or step % trainer.log_every_n_steps:
            return
        self._logged_at = step
        metrics = common.summary(self.algorithm)
        pl_module.log("sparsity/sparsity", metrics.pop("sparsity/sparsity"), prog_bar=True)
        pl_module.log_dict(metrics)

    @torch.no_grad()
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Mask the weights that a callback for averaging left in the module.

        With other steps than foreseen, as by manual optimization, it warns as `on_fit_start`.
        """
        if self.algorithm.step != self._foreseen:
            warn_of_unreached(self.algorithm, self.algorithm.step)
        for sparse in self.algorithm.sparse_params.values():
            sparse.guard.select_weight()

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's state; the masks are in the model's."""
        return self.algorithm.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.algorithm.load_state_dict(state_dict)


def _filters(config: Any) -> Iterator[str]:
    """The filters that a config names."""
    if isinstance(config, Mapping) and "param_filter" in config:
        yield str(config["param_filter"])
    inside = config.values() if isinstance(config, Mapping) else config
    for entry in inside if isinstance(config, (Mapping, list, tuple)) else ():
        yield from _filters(entry)
