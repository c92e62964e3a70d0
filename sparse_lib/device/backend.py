"""Backends and `compile`: a twin of a model whose masked layers skip, or mask, their weights."""

import functools
import warnings
from dataclasses import dataclass, field

from torch import nn

from sparse_lib.device import kernels
from sparse_lib.device.layers import CROSSOVER_SPARSITY, Execution, SparseLayer, skipping_mixin

EXECUTIONS = ("dense", "skip")


@dataclass
class Backend:
    """How the masked layers of a model are executed.

    Attributes:
        name: `"dense"` (masked dense, any torch device), `"skip"` (the masked work is not done;
            CPU, float32).
        strict: Raise where a layer would fall back to masked dense, instead of one notice.
        crossover: Sparsity in [0, 1] below which a layer runs dense because that is faster.
    """

    name: str
    strict: bool = False
    crossover: float = CROSSOVER_SPARSITY
    _noticed: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def notice(self, layer: str, reason: str) -> None:
        """Says once that a layer runs masked dense; raises if `strict`."""
        message = f"layer {layer!r} runs masked dense: {reason}"
        if self.strict:
            raise ValueError(message)
        if (layer, reason) not in self._noticed:
            self._noticed.add((layer, reason))
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def backend(name: str, *, strict: bool = False, crossover: float = CROSSOVER_SPARSITY) -> Backend:
    """Chooses how masked layers are executed.

    Args:
        name: `"dense"` or `"skip"`.
        strict: Raise instead of falling back to masked dense.
        crossover: Sparsity in [0, 1] below which a layer runs dense.

    Raises:
        ValueError: The name is unknown or the crossover is not in [0, 1].
    """
    if name not in EXECUTIONS:
        raise ValueError(f"backend must be one of {', '.join(EXECUTIONS)}, got {name!r}")
    if not 0 <= crossover <= 1:
        raise ValueError(f"crossover must be in [0, 1], got {crossover!r}")
    return Backend(name, strict, crossover)


def compile(model: nn.Module, backend: Backend | str = "skip") -> nn.Module:
    """Returns a twin of the model that shares its parameters and buffers.

    The twin is an ordinary module of the same class: call it, call its other methods, wrap it. The
    original stays usable, and what is done to its parameters, masks or mode (`train`, `eval`) holds
    for both, before and after compiling. Layers are Linear, Conv2d and transformers' Conv1D.

    Args:
        model: Any module; sparsity may be applied to it before or later.
        backend: From `backend`, or its name.

    Raises:
        TypeError: The backend is neither a `Backend` nor a name.
        ValueError: With `strict`, the kernels are missing or a masked layer is not supported.
    """
    if isinstance(backend, str):
        backend = globals()["backend"](backend)
    if not isinstance(backend, Backend):
        raise TypeError(f"backend must be a Backend or a name, got {type(backend).__name__}")
    skip = backend.name == "skip"
    if skip and (why := kernels.unavailable()):
        if backend.strict:
            raise ValueError(f"backend 'skip' cannot run here: {why}")
        warnings.warn(f"every sparse layer runs masked dense: {why}", RuntimeWarning, stacklevel=2)
        skip = False
    return _twin(model, "", backend, skip, {})


def _twin(
    module: nn.Module, path: str, backend: Backend, skip: bool, twins: dict[nn.Module, nn.Module]
) -> nn.Module:
    """A module that shares the dictionaries of another: parameters, masks and hooks, even later."""
    if module in twins:
        return twins[module]
    twin = twins[module] = object.__new__(_twin_class(type(module)))  # type: ignore[arg-type]
    twin.__dict__.update(module.__dict__, _original=module)
    if isinstance(twin, SparseLayer):
        execution = Execution(path, skip, backend.crossover, backend.notice)
        twin.__dict__["_execution"] = execution
    elif skip and any(f"{name}_mask" in module._buffers for name in module._parameters):
        backend.notice(path, f"its type {type(module).__name__} is not supported")
    twin.__dict__["_modules"] = {
        name: child and _twin(child, f"{path}.{name}".lstrip("."), backend, skip, twins)
        for name, child in module._modules.items()
    }
    return twin


@functools.cache
def _twin_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of a twin: its mode is that of the original, and supported layers skip."""

    def holder(self: nn.Module) -> nn.Module:
        return self.__dict__.get("_original", self)

    def mode(self: nn.Module) -> bool:
        owner = holder(self)
        return self.__dict__["training"] if owner is self else owner.training

    def set_mode(self: nn.Module, training: bool) -> None:
        owner = holder(self)
        if owner is self:  # made by the class itself, as when a ModuleList is sliced
            self.__dict__["training"] = training
        else:
            owner.training = training

    members = {"training": property(mode, set_mode), "__module__": kind.__module__}
    return type(kind.__name__, (*skipping_mixin(kind), kind), members)
