"""The older, optimizer-style API of cstorch 2.0/2.1, as thin layers over the algorithms.

``optimizer = configure_sparsity_wrapper(model, optimizer, sparsity_type="rigl", sparsity=0.8)``

Masks, their enforcement and their updates are those of `sparse_lib.core.algorithm`; here are
only the older names and the older order of calls.
"""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_lib.checks import closest
from sparse_lib.compat.dialects import by_pattern
from sparse_lib.compat.optimizers import AlgorithmSparsityOptimizer, BaseSparsityOptimizer
from sparse_lib.core.group import Group
from sparse_lib.core.optimizers import parameters, params_of
from sparse_lib.core.registry import algorithm_classes
from sparse_lib.layers import default_filter


class SparsityWrapperOptimizer(Optimizer):
    """A drop-in for the optimizer it wraps; masks are updated in its ``step``.

    It is a ``torch.optim.Optimizer`` whose parameter groups, defaults and hooks are those of the
    wrapped one, so learning-rate schedulers and ``GradScaler`` take it. ValueError if that has none
    of the sparse parameters.
    """

    # Loss scalers then look for overflow themselves, instead of handing the scale to ``step``.
    _step_supports_amp_scaling = False

    def __init__(self, optimizer: Optimizer, sparsity_optimizer: BaseSparsityOptimizer) -> None:
        # Without super().__init__: all that it would set is the wrapped optimizer's.
        self.optimizer = optimizer
        self.sparsity_optimizer = sparsity_optimizer
        sparsity_optimizer.manage_optimizer_state_sparsity(optimizer)
        sparsity_optimizer.apply_sparsity()

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "sparsity_optimizer"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def sparsity(self) -> Group:
        """The algorithms that make and enforce the masks."""
        return self.sparsity_optimizer.sparsity

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """By parameter, the optimizer's states and the ``"mask"``; writes reach the optimizer."""
        masks = self.sparsity_optimizer.state
        states = self.optimizer.state
        return {p: ChainMap(states[p], masks.get(p, {})) for p in parameters(self.optimizer)}

    def step(self, closure: Callable | None = None) -> Any:
        """Update weights, then masks if they are due; returns what the optimizer's step does."""
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self.sparsity_optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and, under ``"sparsity"``, the sparsity optimizer's."""
        return {**self.optimizer.state_dict(), "sparsity": self.sparsity_optimizer.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`; ValueError if it is of a dense optimizer, or does not fit."""
        if "sparsity" not in state_dict:
            raise ValueError("the state has no 'sparsity'; it belongs to a dense optimizer")
        self.sparsity_optimizer.load_state_dict(state_dict["sparsity"])
        self.optimizer.load_state_dict({k: v for k, v in state_dict.items() if k != "sparsity"})

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("save a sparse optimizer by its state_dict; load that into a new one")

    def __repr__(self) -> str:
        return f"SparsityWrapperOptimizer({self.optimizer!r}, {self.sparsity!r})"


def configure_sparsity_optimizer(
    sparsity_type: str,
    named_parameters: nn.Module | Iterable[tuple[str, Tensor]],
    init_method: str | Callable | None = None,
    param_name_patterns: Any = None,
    sparse_param_filter: Callable[[str, Tensor], bool] | None = None,
    **kwargs: Any,
) -> BaseSparsityOptimizer:
    """Make a sparsity optimizer by name.

    Args:
        sparsity_type: Class name without ``SparsityOptimizer``, in any case, of a built-in or
            user-defined `BaseSparsityOptimizer`; or the name of any algorithm.
        named_parameters: ``(name, parameter)`` pairs, or a model.
        init_method: First masks; None is the algorithm's default.
        param_name_patterns: Regular expression, list of them, or dict from one to the settings of
            its group, of which the first match wins. Without them and a filter,
            `sparse_lib.layers.default_filter` decides.
        sparse_param_filter: ``f(name, param)`` instead of patterns.
        **kwargs: Settings: ``sparsity``, ``schedule``, ``drop_fraction``, ....

    Raises:
        ValueError: If a name or setting is unknown or out of range, or a pattern matches nothing.
        TypeError: If a setting has a wrong type.
    """
    if sparse_param_filter is not None and param_name_patterns is not None:
        raise ValueError("give sparse_param_filter or param_name_patterns, not both")
    if not isinstance(sparsity_type, str):
        raise TypeError(f"sparsity_type must be a name, not {sparsity_type!r}")
    given: Any = named_parameters
    model = given if isinstance(given, nn.Module) else None
    pairs: list[Any] = list(given if model is None else model.named_parameters())
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError("named_parameters must be a model or (name, parameter) pairs")
    settings = dict(kwargs) if init_method is None else {"init_method": init_method, **kwargs}
    if param_name_patterns is not None:
        groups = _groups_by_pattern(param_name_patterns, pairs)
    else:
        wanted = sparse_param_filter or (lambda name, param: default_filter(name, param, model))
        chosen = [pair for pair in pairs if wanted(*pair)]
        if not chosen:
            raise ValueError("no parameter is left to sparsify")
        groups = [{"params": chosen}]
    name = sparsity_type.lower()
    known = _sparsity_optimizers()
    if name in known:
        cls = known[name]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
        return cls(groups, **settings) if takes_any else cls(groups, defaults=settings)
    if name not in algorithm_classes() and name != "sideband":
        names = {*known, *algorithm_classes(), "sideband"}
        raise ValueError(f"sparsity_type {sparsity_type!r} is unknown; {closest(name, names)}")
    method = settings.pop("init_method", "topk" if name == "sideband" else "random")
    return AlgorithmSparsityOptimizer(groups, method, algorithm=name, **settings)


def configure_sparsity_wrapper(
    model: nn.Module,
    optimizer: Optimizer,
    sparsity_type: str,
    param_name_patterns: Any = None,
    sparse_param_filter: Callable[[str, Tensor], bool] | None = None,
    **kwargs: Any,
) -> SparsityWrapperOptimizer:
    """Sparsify a model and its optimizer in one call.

    The model's masked weights become zero now. The other arguments, and errors, are those of
    `configure_sparsity_optimizer`: ``sparsity_type`` is the name of an algorithm, such as
    ``"static"``, ``"gmp"``, ``"set"`` or ``"rigl"``; settings are ``sparsity``, ``init_method``,
    ``schedule`` (when masks are updated; default every 1000 steps), ``drop_fraction``, ....

    Returns:
        What to use in place of ``optimizer``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, not {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch optimizer, not {type(optimizer).__name__}")
    sparsity_optimizer = configure_sparsity_optimizer(
        sparsity_type,
        model,
        param_name_patterns=param_name_patterns,
        sparse_param_filter=sparse_param_filter,
        **kwargs,
    )
    if params_of(optimizer).isdisjoint(params_of(sparsity_optimizer)):
        raise ValueError("the optimizer holds none of the sparse parameters")
    sparsity_optimizer.hook_module(model)
    return SparsityWrapperOptimizer(optimizer, sparsity_optimizer)


def _groups_by_pattern(patterns: Any, pairs: list[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    rest, groups = list(pairs), []
    for matches, settings in by_pattern(patterns):
        params = [pair for pair in rest if matches(*pair)]
        if not params:
            names = ", ".join(name for name, _ in rest)
            raise ValueError(f"{matches!r} matches no parameter; there are: {names}")
        taken = {name for name, _ in params}
        rest = [pair for pair in rest if pair[0] not in taken]
        groups.append({"params": params, **settings})
    return groups


def _sparsity_optimizers() -> dict[str, type]:
    """Concrete sparsity optimizers by lower-cased class name without the suffix."""
    found: dict[str, type] = {}
    classes: list[type] = [BaseSparsityOptimizer]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        if not inspect.isabstract(cls) and cls is not AlgorithmSparsityOptimizer:
            found.setdefault(cls.__name__.lower().removesuffix("sparsityoptimizer"), cls)
    return dict(sorted(found.items()))
