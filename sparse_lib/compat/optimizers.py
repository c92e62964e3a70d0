"""Sparsity optimizers of cerebras-pytorch 2.0 and 2.1, driven by this library's algorithms."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_lib.algorithms.static import Static
from sparse_lib.compat.dialects import DEFAULT_FREQ, translate_one
from sparse_lib.configure import make_algorithm
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.optimizers import params_of, states_like
from sparse_lib.core.registry import algorithm_classes
from sparse_lib.schedules import HyperParameterSchedule


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
        cls.STATE = (*cls.STATE, *getattr(cls, "__state_slots__", ()))
        own = cls.__dict__.get("__call__")
        if own is not None:
            cls.__call__ = _with_tensors(own)  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, step: Any, is_update_step: Any = False) -> float:
        """Value at a step, a non-negative integer; ``is_update_step`` says that masks change."""

    def compute(self, step: int) -> float:
        """Value at a step that is no update step."""
        return self(step, False)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; see `HyperParameterSchedule`."""
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


class BaseSparsityOptimizer(Optimizer, ABC):
    """Base of sparsity in the form of an optimizer, whose state is masks.

    A subclass says how sparse a group is to be, and may set ``self.state[p]["mask"]`` in `step`,
    which is called after the step of the optimizer that trains the weights::

        sparsity = Mine(model.named_parameters(), defaults={"sparsity": 0.5})
        sparsity.hook_module(model)
        sparsity.apply_sparsity()
        sparsity.manage_optimizer_state_sparsity(optimizer)
        ...
        optimizer.step()
        sparsity.step()

    `SparsityWrapperOptimizer` makes these calls. Parameters are ``(name, parameter)`` pairs, dicts
    with ``params`` (pairs) and settings of their own, or a model, which means all of its;
    ``defaults`` are settings of groups without their own.
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
        """Add a dict with ``params``, ``(name, parameter)`` pairs, and settings, before masks."""
        if self.sparsity.sparse_params:
            raise ValueError("add parameter groups before the masks are made")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if "param_names" not in group:
            raise ValueError("params must be (name, parameter) pairs, as model.named_parameters()")
        wanted = {id(param) for param in group["params"]}

        def is_among(name: str, param: Tensor) -> bool:
            return id(param) in wanted

        self.sparsity.add(is_among, self._algorithm_of_group(group))

    @abstractmethod
    def _get_target_sparsity_level_of_group(self, group: dict[str, Any]) -> Any:
        """Fraction of zeros, in [0, 1], that a parameter group should have now."""

    @abstractmethod
    def step(self, closure: Callable | None = None) -> Any:
        """Change masks, by setting ``self.state[p]["mask"]``; enforcement follows by itself."""

    def _algorithm_of_group(self, group: dict[str, Any]) -> SparsityAlgorithm:
        target = self._get_target_sparsity_level_of_group
        return _Held(lambda step: float(target(group)), init_method=group["init_method"])

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken since the masks were made."""
        return self.sparsity.step

    def hook_module(self, module: nn.Module) -> None:
        """Make the masks, as buffers of the module that has the parameters."""
        if params_of(self).isdisjoint(map(id, module.parameters())):
            raise ValueError("the module has none of the sparsity optimizer's parameters")
        if self.sparsity.sparse_params:
            return
        self.sparsity.apply(module)
        for sparse in self.sparsity.sparse_params.values():
            sparse.mask.requires_dense = True  # type: ignore[attr-defined]
            self.state[sparse.param]["mask"] = sparse.mask

    def initialize_sparsity(self) -> None:
        """Make the first masks, or leave that to `hook_module` where it names the module."""
        if self._module is not None:
            self.hook_module(self._module)

    def apply_sparsity(self) -> None:
        """Set masked weights to zero and keep them so; needed before `step`."""
        self.initialize_sparsity()
        if not self.sparsity.sparse_params:
            raise RuntimeError("call hook_module(model) before apply_sparsity")
        self._applied = True
        for sparse in self.sparsity.sparse_params.values():
            sparse.prune()
        if self._optimizer is None:
            self.sparsity.apply(self)

    def manage_optimizer_state_sparsity(
        self, optimizer: Optimizer, state_names: Iterable[str] | None = None
    ) -> None:
        """Keep an optimizer's states sparse too; its ``step`` then counts the steps.

        ``state_names`` are those to mask, such as ``["exp_avg"]``; by default all of their
        parameter's shape.
        """
        if self._optimizer is not None and self._optimizer is not optimizer:
            raise ValueError("this sparsity optimizer already manages another optimizer")
        self.initialize_sparsity()
        if self._optimizer is None:
            self.sparsity.detach(self)
        if state_names is not None:
            leave_dense = functools.partial(_leave_dense, set(state_names))
            leave_dense(optimizer)
            optimizer.register_step_post_hook(leave_dense)
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
        """State by parameter *names*: masks, groups, the step, the state of the algorithms."""
        named = self.sparsity.sparse_params
        states = {name: dict(self.state[sparse.param]) for name, sparse in named.items()}
        for state in states.values():
            state |= {key: v.clone() for key, v in state.items() if isinstance(v, Tensor)}
        return {
            "state": states,
            "param_groups": [{"params": names} for names in self._names()],
            "step": self.num_steps,
            "sparsity": self.sparsity.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`, or one of cstorch 2.1, which has no ``"sparsity"``."""
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
    """Any algorithm, by name, as a sparsity optimizer; ``settings`` are its arguments.

    ``schedule`` says when masks are updated, by default every 1000 steps.
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
        return member.scheduled(first.name)  # type: ignore[union-attr]

    def step(self, closure: Callable | None = None) -> Any:
        """Masks are updated after this, or after the step of the managed optimizer."""
        return None if closure is None else closure()


class StaticSparsityOptimizer(AlgorithmSparsityOptimizer):
    algorithm = "static"


class GMPSparsityOptimizer(AlgorithmSparsityOptimizer):
    algorithm = "gmp"


class SETSparsityOptimizer(AlgorithmSparsityOptimizer):
    algorithm = "set"


class RigLSparsityOptimizer(AlgorithmSparsityOptimizer):
    algorithm = "rigl"


class _Held(Static):
    """Enforces the masks that a sparsity optimizer sets."""

    in_registry: ClassVar[bool] = False


def _leave_dense(sparse_names: set[str], optimizer: Optimizer, *_: Any) -> None:
    """Mark the optimizer states without a given name as dense; a hook after steps."""
    for param, state in optimizer.state.items():
        like = {id(getattr(s, "codes", s)) for s in states_like(optimizer, param)}
        for name, value in state.items():
            if id(value) in like and name not in sparse_names:
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
    for member in sparsity.sparsity.algorithms:
        sparsity.sparsity.driver.enforce(member)
