"""The older, optimizer-style API of cstorch 2.0/2.1, as thin layers over the algorithms.

``optimizer = configure_sparsity_wrapper(model, optimizer, sparsity_type="rigl", sparsity=0.8)``
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.algorithm import SparsityAlgorithm, algorithm_classes
from sparse_lib.configure import configure
from sparse_lib.dynamic import DynamicSparsityAlgorithm
from sparse_lib.group import Group
from sparse_lib.schedules import HyperParameterSchedule

DEFAULT_FREQ = 1000
"""Steps between mask updates where no ``schedule`` is given (as in 2.0/2.1)."""


class BaseHyperParameter(HyperParameterSchedule):
    """A schedule in the older form: ``__call__(step, is_update_step)``, ``TYPE``, tensors.

    Subclasses register under ``TYPE`` and their class name, and can then be named in configs.
    ``step`` arrives as an integer tensor; the returned value may be a tensor or a number.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None:
            cls.__call__ = _with_tensors(own)  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, step: Any, is_update_step: Any = False) -> float:
        """Value at a step."""

    def compute(self, step: int) -> float:
        """Value at a step that is no update step."""
        return self(step, False)


def _with_tensors(call: Callable) -> Callable[..., float]:
    def wrapped(self: Any, step: Any, is_update_step: Any = False) -> float:
        value = call(self, torch.as_tensor(step), torch.as_tensor(bool(is_update_step)))
        return float(value)

    wrapped.__doc__ = call.__doc__
    return wrapped


class SparsityWrapperOptimizer:
    """A drop-in for the optimizer it wraps: ``step``, ``zero_grad``, ``state_dict``, ....

    Attributes:
        optimizer: The wrapped torch optimizer; learning-rate schedulers take this one.
        sparsity: The algorithms, as a :class:`Group` or a :class:`BaseSparsityOptimizer`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, sparsity: SparsityAlgorithm) -> None:
        self.optimizer = optimizer
        self.sparsity = sparsity

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "sparsity"):  # not there while unpickling
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: Callable | None = None) -> Any:
        """Update weights, then masks if they are due."""
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and, under ``"sparsity"``, that of the algorithms."""
        return {**self.optimizer.state_dict(), "sparsity": self.sparsity.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; masks come with the model's own state dict."""
        if "sparsity" not in state_dict:
            raise ValueError("the state has no 'sparsity'; it belongs to a dense optimizer")
        rest = {key: value for key, value in state_dict.items() if key != "sparsity"}
        self.optimizer.load_state_dict(rest)
        self.sparsity.load_state_dict(state_dict["sparsity"])

    def __repr__(self) -> str:
        return f"SparsityWrapperOptimizer({self.optimizer!r}, {self.sparsity!r})"


def configure_sparsity_wrapper(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
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
    if sparse_param_filter is not None and param_name_patterns is not None:
        raise ValueError("give sparse_param_filter or param_name_patterns, not both")
    config = {"type": sparsity_type, **kwargs}
    if param_name_patterns is not None:
        config["param_name_patterns"] = param_name_patterns
    if sparse_param_filter is not None:
        config["param_filter"] = sparse_param_filter
    if not {"schedule", "update", "sparsity_schedule"} & set(kwargs):
        if _is_dynamic(sparsity_type):
            config["update"] = {"freq": DEFAULT_FREQ}
    elif not _is_dynamic(sparsity_type):
        config.pop("schedule", None)  # the older Static took one and ignored it
    group = configure(config)
    assert isinstance(group, Group)
    group.apply(model)
    group.apply(optimizer)
    return SparsityWrapperOptimizer(optimizer, group)


def _is_dynamic(sparsity_type: Any) -> bool:
    cls = algorithm_classes().get(str(sparsity_type).lower())
    return cls is not None and issubclass(cls, DynamicSparsityAlgorithm)


class BaseSparsityOptimizer:
    """Base for sparsity optimizers in the older style: masks as state, ``step`` after the other's.

    Subclasses define ``_get_target_sparsity_level_of_group(group)`` and :meth:`update_mask`.
    Parameters come as ``(name, parameter)`` pairs or groups of them; each group may set its own
    ``sparsity``, ``schedule`` and other defaults.

    Args:
        model: The module that owns the parameters (masks become its buffers).
        params: ``(name, parameter)`` pairs, or dicts with ``params`` and settings. None takes all
            parameters.
        init_method: See :mod:`sparse_lib.init`.
        defaults: Settings for groups without their own.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Iterable[Any] | None = None,
        init_method: str | Callable = "random",
        defaults: dict[str, Any] | None = None,
    ) -> None:
        pairs = list(model.named_parameters() if params is None else params)
        groups = pairs if pairs and isinstance(pairs[0], dict) else [{"params": pairs}]
        self.param_groups = [{**(defaults or {}), **group} for group in groups]
        self.sparsity = Group()
        for group in self.param_groups:
            names = [name for name, _ in group["params"]]
            self.sparsity.add(names, _OfGroup(self, group, init_method))
        self.sparsity.apply(model)
        self._applied = False

    @abstractmethod
    def _get_target_sparsity_level_of_group(self, group: dict[str, Any]) -> float:
        """Target sparsity of a parameter group at ``self.num_steps``."""

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """New mask of a parameter; by default it stays."""
        return mask

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return self.sparsity.step

    def apply_sparsity(self, optimizer: torch.optim.Optimizer) -> None:
        """Mask an optimizer's states and update masks after its steps."""
        self.sparsity.apply(optimizer)
        self._applied = True

    def step(self) -> None:
        """Update the masks now.

        Raises:
            RuntimeError: If :meth:`apply_sparsity` was not called before.
        """
        if not self._applied:
            raise RuntimeError("call apply_sparsity(optimizer) before step")
        self.sparsity.update()

    def state_dict(self) -> dict[str, Any]:
        """State of the algorithms."""
        return self.sparsity.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.sparsity.load_state_dict(state_dict)


class _OfGroup(DynamicSparsityAlgorithm):
    """One parameter group of a :class:`BaseSparsityOptimizer`."""

    in_registry = False

    def __init__(
        self, owner: BaseSparsityOptimizer, group: dict[str, Any], init_method: str | Callable
    ) -> None:
        self._owner = owner
        super().__init__(
            lambda step: float(owner._get_target_sparsity_level_of_group(group)),
            update=group.get("schedule", {"freq": DEFAULT_FREQ}),
            init_method=group.get("init_method", init_method),
        )

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        return self._owner.update_mask(p, mask, sparsity)
