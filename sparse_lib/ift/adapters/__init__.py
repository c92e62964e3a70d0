"""How Sparse-Wide widens each architecture: one file per architecture.

A file holds ``BASE``, the name of the class that all models of the architecture inherit from, and
``widen_config(config, factor)``, which changes a copy of the model's config. A new file is found
by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from torch import nn


def names() -> list[str]:
    """Architectures that Sparse-Wide knows."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(model: nn.Module) -> ModuleType:
    """The adapter of a model by the names of its classes; ValueError if there is none."""
    classes = {cls.__name__ for cls in type(model).__mro__}
    for name in names():
        adapter = importlib.import_module(f"{__name__}.{name}")
        if adapter.BASE in classes:
            return adapter
    raise ValueError(
        f"family 'wide' cannot apply to {type(model).__name__}: it knows the architectures "
        f"{', '.join(names())} of transformers; parallel, factorized and doped work on any model"
    )
