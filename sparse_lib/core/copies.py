"""Notices a copy of an optimizer whose algorithm was left behind.

Torch copies and pickles an optimizer without its hooks, and so without what masks its weights and
updates the masks. Here a driven optimizer says at that moment that it is driven: its copy carries a
hook that warns at the first step, unless an algorithm drives the copy by then.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

from torch.optim import Optimizer

from sparse_lib.core.parameter import warn

_HOOKS = "_optimizer_step_pre_hooks"


class Orphan:
    """A hook before the steps of a copied optimizer: warns once that it is on its own.

    Args:
        algorithm: Class name of what drives the original.
    """

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.has_warned = False

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Warn that nothing updates the masks."""
        if not self.has_warned:
            self.has_warned = True
            warn(
                f"this optimizer is a copy of one that {self.algorithm} drives, but was copied or "
                "pickled without the algorithm, so its masks never change; copy model, algorithm "
                "and optimizer in one call, or apply an algorithm to the copies"
            )


class Mark:
    """On an optimizer while an algorithm drives it: its copies get an `Orphan`.

    It takes the place of ``optimizer.__getstate__``, by which ``copy`` and ``pickle`` ask for
    what a copy is to hold.
    """

    def __init__(self, optimizer: Optimizer, algorithm: str) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._algorithm = algorithm
        optimizer.__dict__["__getstate__"] = self

    def __call__(self) -> dict[str, Any]:
        """The state that torch copies, and the hook."""
        optimizer = self._optimizer()
        assert optimizer is not None  # it asks for its own state
        orphan = OrderedDict({-1: Orphan(self._algorithm)})  # handles count from 0
        return {**type(optimizer).__getstate__(optimizer), _HOOKS: orphan}

    def remove(self) -> None:
        """Take the mark off."""
        optimizer = self._optimizer()
        if optimizer is not None and optimizer.__dict__.get("__getstate__") is self:
            del optimizer.__dict__["__getstate__"]


def adopt(optimizer: Optimizer) -> None:
    """An algorithm drives a copy from now on."""
    hooks = getattr(optimizer, _HOOKS)
    for key in [key for key, hook in hooks.items() if isinstance(hook, Orphan)]:
        del hooks[key]
