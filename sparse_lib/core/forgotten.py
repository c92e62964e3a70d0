"""Warnings, once each, about what a training script forgot."""

from __future__ import annotations

from collections.abc import Iterable

from torch.optim import Optimizer

from sparse_lib.core.parameter import SparseParameter, warn


class Forgotten:
    """What one algorithm has been given, as far as its owner could have forgotten it."""

    def __init__(self) -> None:
        self.has_state = False
        """True once the algorithm's own state was loaded."""
        self._optimizer_loaded = False
        self._look = False
        self._told = False

    def optimizer_applied(self) -> None:
        """The optimizer may have been restored before."""
        self._look = True

    def optimizer_loaded(self) -> None:
        """The optimizer was restored just now."""
        self._look = self._optimizer_loaded = True

    def check_resume(
        self, name: str, step: int, params: Iterable[SparseParameter], optimizer: Optimizer
    ) -> None:
        """Warn if masks and optimizer are those of a checkpoint, and the algorithm is new."""
        if not self._look:
            return
        self._look = False
        if self.has_state or step:
            return
        loaded = [sparse for sparse in params if sparse.guard.was_loaded]
        if loaded and (self._optimizer_loaded or any(optimizer.state.get(s.param) for s in loaded)):
            warn(
                f"masks and optimizer were loaded from a checkpoint, but the state of {name} was "
                "not, so its schedules begin again at step 0; save sparsity.state_dict() beside "
                "them, and call sparsity.load_state_dict"
            )

    def missed_update(self, name: str, step: int) -> None:
        """Warn that an update could not happen since the algorithm drives no optimizer."""
        if not self._told:
            self._told = True
            warn(
                f"{name} would have updated its masks after optimizer step {step}, but it was "
                "applied to no optimizer, so they never change; call sparsity.apply(optimizer)"
            )
