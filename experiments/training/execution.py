"""How masked layers run: dense under their masks, or by kernels that skip the masked work."""

from __future__ import annotations

from dataclasses import astuple

import torch

from experiments.errors import refusals
from sparse_lib import device as skipping
from sparse_lib.core.group import Group


def choose(execution: str, sparsity: Group | None, level: float) -> str:
    """The execution of a run, given the requested one.

    Args:
        level: sparsity at its end, in [0, 1).

    Returns:
        ``execution``; ``dense`` for ``auto`` where no layer is worth skipping.
    """
    if execution != "auto" or sparsity is None:
        return execution
    for param in sparsity.sparse_params.values():
        rows = param.mask.shape[0]
        with refusals("execution is 'auto'"):
            columns = param.mask.numel() // rows
            if skipping.worth_skipping(rows, columns, max(param.sparsity, level)):
                return "auto"
    return "dense"


def skipping_runner(
    model: torch.nn.Module, execution: str, costs: tuple[float, ...] | None
) -> tuple[torch.nn.Module, tuple[float, ...]]:
    """A model whose masked layers skip: all of them, or with ``auto`` those that gain.

    Args:
        model: shares its weights with the result.
        costs: by which a layer gains, of the machine that chose; those of this one if None.
    """
    with refusals(f"execution is {execution!r}"):
        own = skipping.Costs(*costs) if costs else skipping.default_costs()
        crossover = 0.0 if execution == "skip" else None
        name = "skip" if execution == "auto" else execution
        backend = skipping.backend(name, crossover=crossover, costs=own)
        return skipping.compile(model, backend), astuple(own)
