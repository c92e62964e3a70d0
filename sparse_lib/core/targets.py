"""Which sparsity each parameter should have at a step."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks.distributions import distribute, parse
from sparse_lib.rules import EXACT, Rules
from sparse_lib.schedules import HyperParameterSchedule, make_hyperparameter_schedule


class Levels:
    """Sparsity schedules, one for all parameters or several by name, and a distribution.

    ``levels[p]`` is the schedule of a parameter, given by full name or as the tensor itself; it
    raises KeyError where there is none. The arguments are those of `SparsityAlgorithm`; of a dict
    from full parameter name (a glob, or the parameter itself) to a schedule the first match wins.
    """

    def __init__(
        self,
        spec: Any,
        distribution: str | Mapping | Callable | None = None,
        *,
        rules: Rules = EXACT,
    ) -> None:
        self.rules = rules
        self.entries: list[tuple[Any, HyperParameterSchedule]] = [
            (key, make_hyperparameter_schedule(value, key="sparsity", compat=rules))
            for key, value in (spec.items() if _is_map(spec) else [("*", spec)])
        ]
        self.distribution = distribution
        if distribution is not None and not callable(distribution):
            parse(distribution, compat=rules)
        self._params: dict[str, SparseParameter] = {}

    @property
    def params(self) -> dict[str, SparseParameter]:
        """The sparse parameters by full name; a name or glob that matches none is warned of."""
        return self._params

    @params.setter
    def params(self, params: dict[str, SparseParameter]) -> None:
        self._params = params
        for key, _ in self.entries:
            idle = isinstance(key, str) and not any(fnmatchcase(name, key) for name in params)
            if params and idle:
                warnings.warn(f"no parameter matches {key!r}, given a sparsity", stacklevel=2)

    @property
    def schedules(self) -> list[HyperParameterSchedule]:
        """The schedules, each once."""
        return list({id(schedule): schedule for _, schedule in self.entries}.values())

    def __getitem__(self, key: str | Tensor) -> HyperParameterSchedule:
        param = key if isinstance(key, Tensor) else None
        name = key if isinstance(key, str) else ""
        for full_name, sparse in self.params.items():
            if sparse.param is param or full_name == name:
                param, name = sparse.param, full_name
        for own, schedule in self.entries:
            if fnmatchcase(name, own) if isinstance(own, str) else own is param:
                return schedule
        raise KeyError(f"no sparsity is given for parameter {name!r}")

    def targets(self, step: int, *, is_update_step: bool = False) -> dict[str, float]:
        """The sparsity of every parameter at a step, in [0, 1], by full name."""
        values = {id(s): min(max(float(s(step, is_update_step)), 0.0), 1.0) for s in self.schedules}
        groups: dict[int, dict[str, SparseParameter]] = {}
        for name, sparse in self.params.items():
            groups.setdefault(id(self._known(name)), {})[name] = sparse
        targets: dict[str, float] = {}
        for key, group in groups.items():
            if self.distribution is None:
                targets |= dict.fromkeys(group, values[key])
            else:
                weights = {name: sparse.param for name, sparse in group.items()}
                targets |= self._distribute(weights, values[key])
        return {name: targets[name] for name in self.params}

    def _known(self, name: str) -> HyperParameterSchedule:
        try:
            return self[name]
        except KeyError:
            given = [key if isinstance(key, str) else "a tensor" for key, _ in self.entries]
            raise ValueError(
                f"sparsity by parameter has nothing for {name!r}, only for {given}; add '*'"
            ) from None

    def _distribute(self, weights: Mapping[str, Tensor], sparsity: float) -> dict[str, float]:
        if callable(self.distribution):
            return self.distribution(weights, sparsity)
        assert self.distribution is not None
        layouts = {name: self.params[name].layout for name in weights}
        # Three dimensions of no known layer are more likely experts' than a convolution's.
        experts = {
            n for n, lay in layouts.items() if (lay.has_experts if lay else weights[n].dim() == 3)
        }
        return distribute(self.distribution, weights, sparsity, compat=self.rules, experts=experts)

    def advance(self, is_update_step: bool) -> None:
        """Tell stateful schedules that a step is over."""
        for schedule in self.schedules:
            schedule.update(is_update_step)

    def described(self) -> str | None:
        """The schedules as text, the same in every process; None if one is not of this library."""
        told = []
        for key, schedule in self.entries:
            text = schedule.described()
            if text is None:
                return None
            told.append(text if key == "*" else f"{key if isinstance(key, str) else '?'}: {text}")
        return ", ".join(told)

    def state_dict(self) -> list[dict[str, Any]]:
        """State of each schedule, in order."""
        return [dict(schedule.state_dict()) for schedule in self.schedules]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Restore what `state_dict` returned; ValueError if the number of schedules differs."""
        schedules = self.schedules
        if len(state) != len(schedules):
            raise ValueError(
                f"the state holds {len(state)} sparsity schedules, the algorithm {len(schedules)}"
            )
        for schedule, saved in zip(schedules, state, strict=True):
            schedule.load_state_dict(dict(saved))


def _is_map(spec: Any) -> bool:
    """Whether a dict is from parameters to sparsities, not a schedule that lacks its ``type``."""
    if not isinstance(spec, Mapping) or not spec or "type" in spec:
        return False
    classes = HyperParameterSchedule.registry.values()
    arguments = {name for cls in classes for name in inspect.signature(cls).parameters}
    return not all(isinstance(key, str) and key in arguments for key in spec)
