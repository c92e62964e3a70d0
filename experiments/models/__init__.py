"""Models by file name: each file holds a pydantic ``Config`` and ``build(config, ...)``.

``TASK`` in the file names the task (a file of `experiments.tasks`) of grids that name none, by
default ``"lm"``; the task calls ``build``. Only ``Config`` is used while Snakemake parses, so torch
and transformers are imported inside functions.
"""

import pkgutil
from types import ModuleType

from experiments.errors import added


def names() -> list[str]:
    """Names of the models that a spec may use."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))


def get(name: str) -> ModuleType:
    """The module of the model ``name``; raises `UserError` where none can be imported."""
    return added(f"{__name__}.{name}", "Config", "build")


def task(name: str) -> str:
    """Name of the task that the model ``name`` is for."""
    return getattr(get(name), "TASK", "lm")
