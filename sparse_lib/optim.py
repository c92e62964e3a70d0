"""Torch's optimizers with ``.apply(sparsity)``, as the Cerebras documents use them.

Any other optimizer works through ``sparsity.apply(optimizer)``.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch

from sparse_lib.core.algorithm import SparsityAlgorithm


class SparseOptimizer:
    """Adds ``apply`` to a torch optimizer."""

    def apply(self, sparsity: Any) -> Any:
        """Have an algorithm of the model mask states and update masks in ``step``; returns this."""
        if not isinstance(sparsity, SparsityAlgorithm):
            raise TypeError(f"apply takes a sparsity algorithm, not {sparsity!r}")
        sparsity.apply(self)
        return self

    def state_names_to_sparsify(self) -> list[str]:
        """Names of the states that have their parameter's shape, found by a step on a toy tensor.

        L-BFGS has none: its history is of all parameters together.
        """
        if isinstance(self, torch.optim.LBFGS):
            return []
        toy = torch.zeros(2, 3, requires_grad=True)
        gradient = torch.zeros(2, 3)
        toy.grad = gradient.to_sparse() if isinstance(self, torch.optim.SparseAdam) else gradient
        twin: Any = copy.copy(self)  # torch leaves the hooks behind
        twin.state = defaultdict(dict)
        twin.param_groups = [{**group, "params": [toy]} for group in twin.param_groups[:1]]
        twin.step()
        states = twin.state[toy].items()
        return [name for name, value in states if getattr(value, "shape", None) == toy.shape]


def with_apply(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """A subclass of a torch optimizer class that has ``apply``."""
    text = f"``torch.optim.{cls.__name__}`` and ``SparseOptimizer.apply``; arguments: torch's."
    return type(cls.__name__, (SparseOptimizer, cls), {"__module__": __name__, "__doc__": text})


_OPTIMIZERS = {
    name: with_apply(cls)
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    if cls is not torch.optim.Optimizer and not name.startswith("_")
}
globals().update(_OPTIMIZERS)
__all__ = ["SparseOptimizer", "with_apply", *_OPTIMIZERS]
