"""The older, optimizer-style API of cstorch 2.0/2.1, as thin layers over the algorithms.

``optimizer = configure_sparsity_wrapper(model, optimizer, sparsity_type="rigl", sparsity=0.8)``

Masks, their enforcement and their updates are those of :mod:`sparse_lib.core.algorithm`; here are
only the older names and the older order of calls.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_lib.algorithms.static import Static
from sparse_lib.checks import closest
from sparse_lib.compat.dialects import DEFAULT_FREQ, by_pattern, translate_one
from sparse_lib.configure import make_algorithm
from sparse_lib.core.algorithm import SparsityAlgorithm, algorithm_classes
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.guard import mask_name
from sparse_lib.core.optimizers import states_like
from sparse_lib.layers import default_filter
from sparse_lib.schedules.values import HyperParameterSchedule

# ------------------------------------------------------------------------------------------------
# Schedules


class BaseHyperParameter(HyperParameterSchedule):
    """A schedule in the older form: ``__call__(step, is_update_step)``, ``TYPE``, tensors.

    Subclasses register under ``TYPE`` and their class name, and can then be named in configs; one
    with the ``TYPE`` of a built-in schedule replaces it there. ``step`` arrives as an integer
    tensor and ``is_update_step`` as a boolean one; the value may be a tensor or a number.
    ``__state_slots__`` names the attributes that checkpoints hold; a call at an update step may
    change them, and is made once per step.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None:
            cls.__call__ = _with_tensors(own)  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, step: Any, is_update_step: Any = False) -> float:
        """Value at a step, a non-negative integer; ``is_update_step`` says that masks change."""

    def compute(self, step: int) -> float:
        """Value at a step that is no update step."""
        return self(step, False)

    def _state_names(self) -> tuple[str, ...]:
        return super()._state_names() + tuple(getattr(self, "__state_slots__", ()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; see :class:`HyperParameterSchedule`."""
        super().load_state_dict(state)
        self.__dict__.pop("_last_update", None)


for _built_in in set(HyperParameterSchedule.registry.values()):
    BaseHyperParameter.register(_built_in)


def _with_tensors(call: Callable) -> Callable[..., float]:
    def wrapped(self: Any, step: Any, is_update_step: Any = False) -> float:
        step, due = int(step), bool(is_update_step)
        last = self.__dict__.get("_last_update")
        if due and last is not None and last[0] == step:
            return last[1]  # the core may ask twice, and the older classes count calls
        value = float(call(self, torch.tensor(step), torch.tensor(due)))
        if due:
            self._last_update = (step, value)
        return value

    wrapped.__doc__ = call.__doc__
    return wrapped


# ------------------------------------------------------------------------------------------------
# Sparsity optimizers


class BaseSparsityOptimizer(Optimizer, ABC):
    """Base of sparsity in the form of an optimizer, whose state is masks.

    A subclass says how sparse a group is to be, and may set ``self.state[p]["mask"]`` in
    :meth:`step`, which is called after the step of the optimizer that trains the weights::

        sparsity = Mine(model.named_parameters(), defaults={"sparsity": 0.5})
        sparsity.hook_module(model)
        sparsity.apply_sparsity()
        sparsity.manage_optimizer_state_sparsity(optimizer)
        ...
        optimizer.step()
        sparsity.step()

    :class:`SparsityWrapperOptimizer` makes these calls.

    Args:
        params: ``(name, parameter)`` pairs; dicts with ``params`` (pairs) and settings of their
            own; or a model, which means all its parameters.
        init_method: First masks, see :mod:`sparse_lib.masks.init`.
        defaults: Settings of groups without their own.

    Raises:
        ValueError: If parameters come without names, or a setting is not allowed.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        init_method: str | Callable = "random",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.sparsity = Group()
        """The algorithms that make and enforce the masks, one per parameter group."""
        self._module = params if isinstance(params, nn.Module) else None
        self._optimizer: Optimizer | None = None
        self._applied = False
        pairs = params.named_parameters() if isinstance(params, nn.Module) else params
        super().__init__(pairs, {"init_method": init_method, **(defaults or {})})
        self.register_step_pre_hook(_refuse_unapplied)
        self.register_step_post_hook(_adopt_masks)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a dict with ``params``, ``(name, parameter)`` pairs, and settings.

        Raises:
            ValueError: If names are missing, a setting is wrong, or masks exist already.
        """
        if self.sparsity.sparse_params:
            raise ValueError("add parameter groups before the masks are made")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if "param_names" not in group:
            raise ValueError("params must be (name, parameter) pairs, as model.named_parameters()")
        self.sparsity.add(_among(group["params"]), self._algorithm_of_group(group))

    @abstractmethod
    def _get_target_sparsity_level_of_group(self, group: dict[str, Any]) -> Any:
        """Fraction of zeros, in [0, 1], that a parameter group should have now."""

    @abstractmethod
    def step(self, closure: Callable | None = None) -> Any:
        """Change masks, by setting ``self.state[p]["mask"]``; enforcement follows by itself.

        Raises:
            RuntimeError: If :meth:`apply_sparsity` was never called.
        """

    def _algorithm_of_group(self, group: dict[str, Any]) -> SparsityAlgorithm:
        target = self._get_target_sparsity_level_of_group
        return _Held(lambda step: float(target(group)), init_method=group["init_method"])

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken since the masks were made."""
        return self.sparsity.step

    def hook_module(self, module: nn.Module) -> None:
        """Make the masks buffers of the module that uses the parameters, enforced from now on.

        Masks that :meth:`initialize_sparsity` made before are taken along.

        Raises:
            ValueError: If the module has none of the parameters.
        """
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        if mine.isdisjoint(id(p) for p in module.parameters()):
            raise ValueError("the module has none of the sparsity optimizer's parameters")
        made = self.sparsity.sparse_params
        if made and module is not self._module:
            masks = {id(sparse.param): sparse.mask for sparse in made.values()}
            for owner in module.modules():
                for name, param in owner._parameters.items():
                    if id(param) in masks:
                        owner.register_buffer(mask_name(name), masks[id(param)])
            algorithms = [self._algorithm_of_group(group) for group in self.param_groups]
            groups = zip(self.param_groups, algorithms, strict=True)
            self.sparsity = Group([(_among(g["params"]), algorithm) for g, algorithm in groups])
        self._module = module
        self.sparsity.apply(module)
        for sparse in self.sparsity.sparse_params.values():
            sparse.mask.requires_dense = True  # type: ignore[attr-defined]
            self.state[sparse.param]["mask"] = sparse.mask

    def initialize_sparsity(self) -> None:
        """Make the first masks; without a module yet, they live here only."""
        if not self.sparsity.sparse_params:
            self.hook_module(self._module or _shell(self.param_groups))

    def apply_sparsity(self) -> None:
        """Set masked weights to zero and keep them so; needed before :meth:`step`."""
        self.initialize_sparsity()
        self._applied = True
        for sparse in self.sparsity.sparse_params.values():
            sparse.prune()
        if self._optimizer is None:
            self.sparsity.apply(self)

    def manage_optimizer_state_sparsity(
        self, optimizer: Optimizer, state_names: Iterable[str] | None = None
    ) -> None:
        """Keep an optimizer's states sparse too; its ``step`` then counts the steps.

        Args:
            optimizer: What trains the weights.
            state_names: States to mask, such as ``["exp_avg"]``; by default all of the shape of
                their parameter.

        Raises:
            ValueError: If another optimizer is managed already.
        """
        if self._optimizer is not None and self._optimizer is not optimizer:
            raise ValueError("this sparsity optimizer already manages another optimizer")
        self.initialize_sparsity()
        if self._optimizer is None:
            for handle in self.sparsity._handles:  # the hooks on this object
                handle.remove()
            self.sparsity._unplug()
        if state_names is not None:
            mark = _StatesLeftDense(set(state_names))
            mark(optimizer)
            optimizer.register_step_post_hook(mark)
        self.sparsity.apply(optimizer)
        self._optimizer = optimizer

    def visit_state(self, fn: Callable[[Tensor], Tensor | None]) -> None:
        """Call ``fn`` on every state tensor; what it returns, unless None, takes its place."""
        for state in self.state.values():
            for name, value in list(state.items()):
                new = fn(value) if isinstance(value, Tensor) else None
                if new is not None:
                    state[name] = new
        _adopt_masks(self)

    def state_dict(self) -> dict[str, Any]:
        """State by parameter *names*.

        Returns:
            ``{"state": {name: {"mask": bool tensor}}, "param_groups": [{"params": names}],
            "step", "sparsity"}``; the last is the state of the algorithms.
        """
        named = self.sparsity.sparse_params
        return {
            "state": {
                name: {
                    key: value.clone() if isinstance(value, Tensor) else value
                    for key, value in self.state[sparse.param].items()
                }
                for name, sparse in named.items()
            },
            "param_groups": [{"params": names} for names in self._names()],
            "step": self.num_steps,
            "sparsity": self.sparsity.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, or one of cstorch 2.1, which has no ``"sparsity"``.

        Raises:
            ValueError: If a group has other parameter names.
        """
        saved = [list(group["params"]) for group in state_dict.get("param_groups", ())]
        if saved != self._names():
            raise ValueError(f"the state is of parameter groups {saved}, not of {self._names()}")
        for name, entry in state_dict["state"].items():
            sparse = self.sparsity.sparse_params[name]
            sparse.mask = entry["mask"]
            self.state[sparse.param].update(entry, mask=sparse.mask)
        if "sparsity" in state_dict:
            self.sparsity.load_state_dict(state_dict["sparsity"])
        else:
            for algorithm in (self.sparsity, *self.sparsity.algorithms):
                algorithm.step = int(state_dict.get("step", 0))

    def _names(self) -> list[list[str]]:
        return [list(algorithm.sparse_params) for algorithm in self.sparsity.algorithms]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "save a sparsity optimizer by its state_dict, and make a new one to load it"
        )


class AlgorithmSparsityOptimizer(BaseSparsityOptimizer):
    """Any algorithm as a sparsity optimizer.

    Args:
        params: See :class:`BaseSparsityOptimizer`.
        init_method: See :class:`BaseSparsityOptimizer`.
        algorithm: Name of the algorithm; subclasses have one.
        **settings: Arguments of the algorithm: ``sparsity``, ``schedule`` (when masks are
            updated, default every 1000 steps), ``drop_fraction``, ....
    """

    algorithm: str = "static"

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        init_method: str | Callable = "random",
        *,
        algorithm: str | None = None,
        **settings: Any,
    ) -> None:
        self.algorithm = self.algorithm if algorithm is None else algorithm
        super().__init__(params, init_method, settings)

    def _algorithm_of_group(self, group: dict[str, Any]) -> SparsityAlgorithm:
        config = {key: v for key, v in group.items() if key not in ("params", "param_names")}
        cls = algorithm_classes().get(str(self.algorithm).lower())
        if cls is None or not issubclass(cls, DynamicSparsityAlgorithm):
            config.pop("schedule", None)  # the older Static took one and ignored it
        elif not {"schedule", "update", "sparsity_schedule"} & set(config):
            config["update"] = {"freq": DEFAULT_FREQ}
        return make_algorithm(translate_one({"type": self.algorithm, **config}))

    def _get_target_sparsity_level_of_group(self, group: dict[str, Any]) -> float:
        """Scheduled sparsity of the group's first parameter."""
        first = self.sparsity.get_sparse_params(group["params"][0])
        member = next(a for a in self.sparsity.algorithms if first.name in a.sparse_params)  # type: ignore[union-attr]
        return member._scheduled(first.name)  # type: ignore[union-attr]

    def step(self, closure: Callable | None = None) -> Any:
        """Masks are updated after this, or after the step of the managed optimizer."""
        return None if closure is None else closure()


class StaticSparsityOptimizer(AlgorithmSparsityOptimizer):
    """:class:`sparse_lib.Static` as a sparsity optimizer."""

    algorithm = "static"


class GMPSparsityOptimizer(AlgorithmSparsityOptimizer):
    """:class:`sparse_lib.GMP` as a sparsity optimizer."""

    algorithm = "gmp"


class SETSparsityOptimizer(AlgorithmSparsityOptimizer):
    """:class:`sparse_lib.SET` as a sparsity optimizer."""

    algorithm = "set"


class RigLSparsityOptimizer(AlgorithmSparsityOptimizer):
    """:class:`sparse_lib.RigL` as a sparsity optimizer."""

    algorithm = "rigl"


class _Held(Static):
    """Enforces the masks that a sparsity optimizer sets."""

    in_registry: ClassVar[bool] = False


class _StatesLeftDense:
    """Marks the optimizer states without a given name as dense; a hook after steps."""

    def __init__(self, sparse_names: set[str]) -> None:
        self.sparse_names = sparse_names

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        for param, state in optimizer.state.items():
            like = {id(value) for value in states_like(optimizer, param)}
            for name, value in state.items():
                if id(value) in like and name not in self.sparse_names:
                    value.requires_dense = True


def _refuse_unapplied(sparsity: Any, *_: Any) -> None:
    if not sparsity._applied:
        raise RuntimeError("call apply_sparsity before step")


def _adopt_masks(sparsity: Any, *_: Any) -> None:
    """Hand masks that were set in the state to the algorithms; a hook after steps."""
    for sparse in sparsity.sparsity.sparse_params.values():
        new = sparsity.state[sparse.param]["mask"]
        if new is not sparse.mask:
            sparse.mask = new
            sparsity.state[sparse.param]["mask"] = sparse.mask
            if sparsity._optimizer is not None:
                sparsity.sparsity._mask_states_of(sparse, sparsity._optimizer)


def _among(params: Iterable[Tensor]) -> Callable[[str, Tensor], bool]:
    wanted = {id(param) for param in params}

    def is_among(name: str, param: Tensor) -> bool:
        return id(param) in wanted

    return is_among


def _shell(param_groups: Iterable[Mapping[str, Any]]) -> nn.Module:
    """A module without a forward that owns parameters under their full names."""
    root = nn.Module()
    for group in param_groups:
        for name, param in zip(group["param_names"], group["params"], strict=True):
            *path, leaf = name.split(".")
            owner = root
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(leaf, param)
    return root


# ------------------------------------------------------------------------------------------------
# The wrapper


class SparsityWrapperOptimizer(Optimizer):
    """A drop-in for the optimizer it wraps; masks are updated in its ``step``.

    It is a ``torch.optim.Optimizer`` whose parameter groups, defaults and hooks are those of the
    wrapped one, so learning-rate schedulers and ``GradScaler`` take it.

    Args:
        optimizer: Any torch optimizer.
        sparsity_optimizer: What makes its weights sparse.

    Raises:
        ValueError: If the optimizer has none of the sparse parameters.
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
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {p: ChainMap(self.optimizer.state[p], masks.get(p, {})) for p in params}

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
        """Restore :meth:`state_dict`.

        Raises:
            ValueError: If the state is of a dense optimizer, or does not fit.
        """
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
            user-defined :class:`BaseSparsityOptimizer`; or the name of any algorithm.
        named_parameters: ``(name, parameter)`` pairs, or a model.
        init_method: First masks; None is the algorithm's default.
        param_name_patterns: Regular expression, list of them, or dict from one to the settings of
            its group, of which the first match wins. Without them and a filter,
            :func:`sparse_lib.layers.default_filter` decides.
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
    model = named_parameters if isinstance(named_parameters, nn.Module) else None
    pairs: list[tuple[str, Tensor]] = (
        list(named_parameters.named_parameters())
        if isinstance(named_parameters, nn.Module)
        else list(named_parameters)
    )
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError("named_parameters must be a model or (name, parameter) pairs")
    settings = dict(kwargs) if init_method is None else {"init_method": init_method, **kwargs}
    if param_name_patterns is not None:
        groups = _groups_by_pattern(param_name_patterns, pairs)
    else:
        if sparse_param_filter is not None:
            chosen = [pair for pair in pairs if sparse_param_filter(*pair)]
        else:
            chosen = [(n, p) for n, p in pairs if default_filter(n, p, model)]
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

    Args:
        model: Any module; its masked weights become zero now.
        optimizer: Any torch optimizer over its parameters.
        sparsity_type: Name of an algorithm, such as ``"static"``, ``"gmp"``, ``"set"``,
            ``"rigl"``.
        param_name_patterns: Regular expression, list of them, or dict from one to settings.
        sparse_param_filter: ``f(name, param)`` instead of patterns.
        **kwargs: The algorithm's settings: ``sparsity``, ``init_method``, ``schedule`` (when
            masks are updated; default every 1000 steps), ``drop_fraction``, ....

    Returns:
        What to use in place of ``optimizer``.

    Raises:
        ValueError: If a setting is unknown or out of range.
        TypeError: If a setting has a wrong type.
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
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if held.isdisjoint(id(p) for group in sparsity_optimizer.param_groups for p in group["params"]):
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
