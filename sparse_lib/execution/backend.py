"""Backends and `compile`: a twin of a model whose masked layers skip, or mask, their weights."""

import copyreg
import functools
import warnings
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from torch import nn

from sparse_lib.checks import check_bool, check_finite
from sparse_lib.execution import kernels
from sparse_lib.execution.costs import Costs
from sparse_lib.execution.layers import Execution, SparseLayer, skipping_mixin
from sparse_lib.layers import original

EXECUTIONS = ("dense", "skip")


@dataclass
class Backend:
    """How masked layers are executed.

    Args:
        name: `"skip"` (the masked work is not done; CPU, float32 or bfloat16) or `"dense"` (masked
            dense, any torch device).
        strict: Raise instead of falling back to masked dense.
        crossover: Sparsity in [0, 1] below which a layer runs dense; decided by each layer's size
            and sparsity if None.
        costs: By which it is decided: `sparse_lib.device.Costs`; those of this machine,
            from its processor or the environment variable `SPARSE_LIB_SKIP_COSTS`, if None.

    Raises:
        TypeError: The crossover is no number, ``costs`` no `Costs`, or ``strict`` no bool.
        ValueError: The name is unknown, or the crossover is not in [0, 1].
    """

    name: str
    _: KW_ONLY
    strict: bool = False
    crossover: float | None = None
    costs: Costs | None = None
    _noticed: set[tuple[str, str]] = field(default_factory=set, repr=False, init=False)

    def __post_init__(self) -> None:
        name, crossover, costs = self.name, self.crossover, self.costs
        if name not in EXECUTIONS:
            raise ValueError(f"backend must be {' or '.join(map(repr, EXECUTIONS))}, got {name!r}")
        if crossover is not None and not 0 <= check_finite(crossover, "crossover") <= 1:
            raise ValueError(f"crossover must be in [0, 1], got {crossover!r}")
        if costs is not None and not isinstance(costs, Costs):
            raise TypeError(f"costs must be sparse_lib.device.Costs, got {costs!r}")
        check_bool(self.strict, "strict")

    def notice(self, layer: str, reason: str) -> None:
        """Says once that a layer runs masked dense; raises if `strict`."""
        message = f"layer {layer!r} runs masked dense: {reason}"
        if self.strict:
            raise ValueError(message)
        if (layer, reason) not in self._noticed:
            self._noticed.add((layer, reason))
            warnings.warn(message, RuntimeWarning, stacklevel=2)


backend = Backend  # as scripts write it


def compile(model: nn.Module, backend: Backend | str = "skip") -> nn.Module:
    """Returns a twin of the model that shares its parameters and buffers.

    The twin is an ordinary module of the same class: call it, call its other methods, wrap it. The
    original stays usable, and what is done to its parameters, masks or mode (`train`, `eval`) holds
    for both, before and after compiling. Layers are Linear, Conv2d and transformers' Conv1D; one
    whose weight is tied to a masked one takes that one's mask.

    `torch.compile` of a twin keeps the kernels in its graph, and compiles nothing again when masks
    change. While torch traces or transforms it otherwise (`torch.export`, `torch.jit.trace`,
    `torch.func`) and under dispatch modes other than a `Ledger`, all layers run masked dense.
    Pickled or copied, a twin stays one and brings its original along.

    Args:
        model: Any module; sparsity may be applied to it before or later.
        backend: A `Backend` or its name.

    Raises:
        TypeError: The model is no module, or the backend neither a `Backend` nor a name.
        ValueError: With `strict`, the kernels are missing or a masked layer is not supported; also
            when the twin is called, if the mask came later.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    backend = Backend(backend) if isinstance(backend, str) else backend
    if not isinstance(backend, Backend):
        raise TypeError(f"backend must be a Backend or a name, got {type(backend).__name__}")
    skip = backend.name == "skip"
    if skip and (why := kernels.unavailable()):
        if backend.strict:
            raise ValueError(f"backend {backend.name!r} cannot skip here: {why}")
        warnings.warn(f"every sparse layer runs masked dense: {why}", RuntimeWarning, stacklevel=2)
        skip = False
    pairs = [(id(p), m) for m in model.modules() for p in m._parameters.values()]
    owners = dict(reversed(pairs))  # the first that has it
    return _twin(model, "", backend, skip, owners, {})


def _twin(
    module: nn.Module,
    path: str,
    backend: Backend,
    skip: bool,
    owners: dict[int, nn.Module],
    twins: dict[nn.Module, nn.Module],
) -> nn.Module:
    """A module that shares the dictionaries of another: parameters, masks and hooks, even later."""
    if module in twins:
        return twins[module]
    can_mask = any(p is not None and p.dim() > 1 for p in module._parameters.values())
    is_watched = skip and can_mask and not skipping_mixin(type(module))
    twin = twins[module] = _new_twin(type(module), is_watched)
    twin.__dict__.update(module.__dict__, _original=module)
    if isinstance(twin, SparseLayer):
        owner = owners.get(id(module._parameters.get("weight")), module)
        execution = Execution(path, skip, backend.crossover, backend.notice, owner, backend.costs)
        twin.__dict__["_execution"] = execution
    elif isinstance(twin, _Watched):
        twin.__dict__["_notice"] = functools.partial(backend.notice, path)
        twin.notice_masks()
    twin.__dict__["_modules"] = {
        name: child and _twin(child, f"{path}.{name}".lstrip("."), backend, skip, owners, twins)
        for name, child in module._modules.items()
    }
    return twin


class _Watched:
    """Mixin for modules that cannot skip: gives notice of a mask that appears after compiling."""

    def notice_masks(self: Any) -> None:
        if any(f"{name}_mask" in self._buffers for name in self._parameters):
            self.__dict__["_notice"](f"its type {type(self).__name__} is not supported")

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.notice_masks()
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


@functools.cache
def _twin_class(kind: type[nn.Module], is_watched: bool) -> type[nn.Module]:
    """The class of a twin: its mode is that of the original, and supported layers skip."""

    def mode(self: nn.Module) -> bool:
        owner = original(self)
        return self.__dict__["training"] if owner is self else owner.training

    def set_mode(self: nn.Module, training: bool) -> None:
        owner = original(self)
        if owner is self:  # made by the class itself, as when a ModuleList is sliced
            self.__dict__["training"] = training
        else:
            owner.training = training

    def reduce(self: nn.Module, protocol: Any) -> Any:
        reduced: Any = kind.__reduce_ex__(self, max(protocol, 2))
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            # Pickle would not find the twin's class.
            return (_new_twin, (kind, is_watched), *reduced[2:])
        return reduced

    members = {"training": property(mode, set_mode), "__module__": kind.__module__}
    members |= {"__reduce_ex__": reduce}
    mixins = (_Watched,) if is_watched else skipping_mixin(kind)
    return type(kind.__name__, (*mixins, kind), members)


def _new_twin(kind: type[nn.Module], is_watched: bool = False) -> nn.Module:
    """A twin without contents, for `_twin` and for pickle."""
    return object.__new__(_twin_class(kind, is_watched))  # type: ignore[arg-type]
