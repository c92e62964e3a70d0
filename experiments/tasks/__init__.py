"""What a training run trains: one file per task, each with a ``Task`` class.

A task gives the loop its model, its batches, its loss and its validation; the loop in
`experiments.training` knows nothing else of text or images.
"""

import importlib
from types import ModuleType


def get(name: str) -> ModuleType:
    """The module of the task ``name`` (``lm``, ...)."""
    return importlib.import_module(f"{__name__}.{name}")
