"""Metrics of a training loop of one's own: to any tracker, and as a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.optimizers import innermost
from sparse_lib.integrations import common


class Follower:
    """Follows the steps of an optimizer: metrics of its algorithm to a tracker, and a bar.

    Args:
        algorithm: Applied to the model and to the optimizer.
        optimizer: The optimizer.
        log: Called as ``log(numbers, step)`` with the numbers of `common.summary`, as
            ``wandb.log``, ``trackio.log`` and ``mlflow.log_metrics`` take them.
        every: Optimizer steps between two calls.
        num_steps: Length of the training, for a progress bar (tqdm), which is drawn on a terminal
            only; None draws none.

    Raises:
        ValueError: If ``every`` is below 1.

    Warns:
        UserWarning: If masks do not reach their targets within ``num_steps``.
    """

    def __init__(
        self,
        algorithm: SparsityAlgorithm,
        optimizer: Optimizer,
        log: Callable[[dict[str, float], int], Any] | None = None,
        *,
        every: int = 50,
        num_steps: int | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every!r}")
        self.algorithm, self.log, self.every = algorithm, log, every
        self._seen, self._num_steps = algorithm.step, num_steps or 0
        self._bar = progress_bar(num_steps, algorithm.step) if num_steps else None
        if num_steps:
            common.warn_of_unreached(algorithm, num_steps)
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
        if self.log is not None:
            self.log(numbers, step)

    def close(self) -> None:
        """Stop following.

        Warns:
            UserWarning: If the optimizer made fewer than ``num_steps`` steps, as it does if these
                were batches of accumulated gradients, and masks do not reach their targets.
        """
        self._handle.remove()
        if self.algorithm.step < self._num_steps:
            common.warn_of_unreached(self.algorithm, self.algorithm.step)
        if self._bar is not None:
            self._bar.close()


def progress_bar(num_steps: int, done: int = 0, **options: Any) -> Any:
    """A tqdm bar over optimizer steps, or None where stderr is no terminal or tqdm is missing."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=num_steps, initial=done, unit="step", dynamic_ncols=True, **options)
