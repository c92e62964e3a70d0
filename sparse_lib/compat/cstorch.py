"""``from sparse_lib.compat import cstorch`` in place of ``import cerebras.pytorch as cstorch``.

Holds what the Cerebras documents' scripts use: ``backend``, ``compile``, ``sparse``, ``optim``.
"""

from __future__ import annotations

import contextlib
import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from sparse_lib import optim, schedules
from sparse_lib.compat import optimizers, wrapper
from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.core.registry import algorithm_classes
from sparse_lib.masks import makers, shapers

__all__ = ["Backend", "backend", "compile", "optim", "sparse"]

importlib.import_module("sparse_lib.algorithms")


class Backend:
    """Where a model lives, by name: ``"CPU"``, ``"GPU"``, or ``"CSX"`` (the CPU here); any case.

    Other arguments are taken, so that scripts run, and not used.
    """

    def __init__(self, backend_type: str = "CPU", **_: Any) -> None:
        self.backend_type = str(backend_type).upper()
        if self.backend_type not in ("CPU", "GPU", "CSX"):
            raise ValueError(f"backend_type must be 'CPU', 'GPU' or 'CSX', not {backend_type!r}")
        if self.backend_type == "GPU" and not torch.cuda.is_available():
            raise ValueError("backend_type 'GPU' needs a CUDA device, and torch sees none")
        self.torch_device = torch.device("cuda" if self.backend_type == "GPU" else "cpu")

    @property
    def device(self) -> contextlib.AbstractContextManager:
        """Context in which new tensors are made on the device."""
        return torch.device(self.torch_device)

    def __repr__(self) -> str:
        return f"Backend({self.backend_type!r})"


backend = Backend


def compile(model: nn.Module, backend: Backend | None = None) -> nn.Module:
    """Move a model to the backend's device, if one is given; it needs no other preparation here."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"compile takes a torch module, not {model!r}")
    return model if backend is None else model.to(backend.torch_device)


_NAMED: tuple[Any, ...] = (
    *algorithm_classes().values(),
    *(DynamicSparsityAlgorithm, Group, SparseParameter, SparsityAlgorithm, configure),
    *(shapers.ScoreShaper, *shapers.SHAPERS.values()),
    *(optimizers.BaseHyperParameter, optimizers.BaseSparsityOptimizer),
    *optimizers.AlgorithmSparsityOptimizer.__subclasses__(),
    *(wrapper.SparsityWrapperOptimizer, wrapper.configure_sparsity_wrapper),
    wrapper.configure_sparsity_optimizer,
    *(makers.make_mask_drop_minimum, makers.make_mask_grow_maximum, makers.make_mask_topk_sparsity),
)
sparse = SimpleNamespace(
    **{named.__name__: named for named in _NAMED},
    **{
        name: value
        for name, value in vars(schedules).items()
        if getattr(value, "__module__", None) == schedules.__name__ and name[0] != "_"
    },
)
