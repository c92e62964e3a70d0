"""Batches on their way to the device: shared out over ranks and micro-batches, prepared ahead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from experiments.errors import UserError


def over(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to a batch, a tensor or a tuple of them."""
    return tuple(map(function, batch)) if isinstance(batch, tuple) else function(batch)


class Batches:
    """What this process trains on at a step.

    The samples of a step are split in order, first over ranks, then over micro-batches, so that
    the mean of the parts' losses is the loss of the whole batch.

    Args:
        make: ``make(step)`` is the whole batch, samples first.
        size: Samples of a whole batch.
        device: Where they go.
        rank: Number of this process.
        num_ranks: Number of processes.
        num_parts: Micro-batches per step and process.
        ahead: Whether a thread prepares the next step's batch; None does so for a GPU.

    Raises:
        UserError: If the samples of a batch cannot be split evenly.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        *,
        size: int,
        device: torch.device,
        rank: int = 0,
        num_ranks: int = 1,
        num_parts: int = 1,
        ahead: bool | None = None,
    ) -> None:
        if size % (num_ranks * num_parts):
            raise UserError(
                f"recipe.batch_size is {size}, which {num_ranks} processes with {num_parts} "
                "micro-batches each cannot share evenly"
            )
        self.make, self.device, self.num_parts = make, device, num_parts
        self.share = size // num_ranks
        self.first = rank * self.share
        self.ahead = device.type != "cpu" if ahead is None else ahead
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Any]] | None = None

    def prepared(self, step: int) -> Any:
        """This process's samples of a step, in pinned memory if a GPU is to read them."""
        rows = slice(self.first, self.first + self.share)
        batch = over(self.make(step), lambda part: part[rows])
        if self.device.type == "cuda":
            batch = over(batch, lambda part: part.pin_memory())
        return batch

    def parts(self, step: int) -> list[Any]:
        """The micro-batches of a step, on the device."""
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
        batch = over(batch, lambda part: part.to(self.device, non_blocking=True))
        if self.num_parts == 1:
            return [batch]
        size = self.share // self.num_parts
        return [
            over(batch, partial(torch.narrow, dim=0, start=start, length=size))
            for start in range(0, self.share, size)
        ]

    def close(self) -> None:
        """Stop preparing."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = self._next = None
