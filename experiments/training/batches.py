"""Batches on their way to the device, where it is no CPU prepared a step ahead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


def over(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to a batch, a tensor or a tuple of them."""
    return tuple(map(function, batch)) if isinstance(batch, tuple) else function(batch)


class Batches:
    """The samples that a run trains on, step by step.

    Args:
        make: ``make(step)`` is the batch, samples first.
        ahead: Whether a thread prepares the next step's batch; None does so for a GPU.
    """

    def __init__(
        self, make: Callable[[int], Any], *, device: torch.device, ahead: bool | None = None
    ) -> None:
        self.make, self.device = make, device
        self.ahead = device.type != "cpu" if ahead is None else ahead
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Any]] | None = None

    def prepared(self, step: int) -> Any:
        """The samples of a step, in pinned memory if a GPU is to read them."""
        batch = self.make(step)
        return over(batch, torch.Tensor.pin_memory) if self.device.type == "cuda" else batch

    def of(self, step: int) -> Any:
        """The batch of a step, on the device."""
        if not self.ahead:
            batch = self.prepared(step)
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
            known = self._next
            future = (
                known[1]
                if known is not None and known[0] == step
                else self._thread.submit(self.prepared, step)
            )
            batch = future.result()
            self._next = step + 1, self._thread.submit(self.prepared, step + 1)
        return over(batch, lambda part: part.to(self.device, non_blocking=True))

    def close(self) -> None:
        """Stop preparing."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = self._next = None
