"""Group: different algorithms for different parameters of one model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.checks import SettingError, check_seed, positional
from sparse_lib.core import distributed
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.applied import Applied
from sparse_lib.core.driver import Found
from sparse_lib.core.parameter import WRAPPER, SparseParameter, find_parameters, unwrap, warn
from sparse_lib.core.states import check_counters, warn_of_seed

Filter = str | Sequence[str] | Callable[..., bool]


class Group(Applied):
    """Several algorithms; each parameter goes to the first whose filter matches it.

    It counts as a `SparsityAlgorithm` for ``isinstance``, as in the Cerebras library.

    Args:
        groups: Dict from filter to algorithm, or a list of such pairs. A filter is a glob on the
            full parameter name (``*`` also matches dots), a list of globs, or a callable
            ``f(name, param)`` or ``f(name, param, model)``.
        seed: Seed for members without one of their own.

    Raises:
        TypeError: If a member is no algorithm, or a filter neither globs nor callable.
        ValueError: If a member is a Group, or comes twice.
    """

    def __init__(
        self,
        groups: Mapping[Any, SparsityAlgorithm] | Iterable[tuple[Filter, SparsityAlgorithm]] = (),
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.seed = self.given_seed = check_seed(seed)
        self._members: list[tuple[Filter, SparsityAlgorithm]] = []
        for pair in list(groups.items() if isinstance(groups, Mapping) else groups):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise TypeError(f"a Group takes a dict or (filter, algorithm) pairs, not {pair!r}")
            self.add(*pair)

    def add(self, param_filter: Filter, algorithm: SparsityAlgorithm) -> None:
        """Add a member after the others; RuntimeError once the group was applied."""
        if self.sparse_params:
            raise RuntimeError("the Group was applied already; add members before apply(model)")
        if isinstance(algorithm, Group):
            raise ValueError("a Group cannot hold a Group; use extend")
        if not isinstance(algorithm, SparsityAlgorithm):
            raise TypeError(f"a Group holds sparsity algorithms, not {algorithm!r}")
        algorithm.check_made()
        if any(known is algorithm for known in self.algorithms):
            raise ValueError("this algorithm is in the Group already; give it a list of globs")
        if not (isinstance(param_filter, str) or callable(param_filter)):
            is_list = isinstance(param_filter, (list, tuple)) and param_filter
            if not is_list or not all(isinstance(glob, str) for glob in param_filter):
                kinds = "a glob, a list of globs or a callable"
                raise SettingError(f"param_filter must be {kinds}, not {param_filter!r}")
            param_filter = list(param_filter)
        algorithm.autoupdate = algorithm.autoupdate and self._autoupdate
        self._members.append((param_filter, algorithm))

    def extend(self, group: Group) -> None:
        """Add all members of another group."""
        for param_filter, algorithm in group._members:
            self.add(param_filter, algorithm)

    def __getitem__(self, index: int) -> SparsityAlgorithm:
        return self._members[index][1]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[SparsityAlgorithm]:
        return iter(self.algorithms)

    @property
    def algorithms(self) -> list[SparsityAlgorithm]:
        """The members, in order."""
        return [algorithm for _, algorithm in self._members]

    @property
    def sparse_params(self) -> dict[str, SparseParameter]:  # type: ignore[override]
        """Sparse parameters of all members by full name."""
        return {name: s for a in self.algorithms for name, s in a.sparse_params.items()}

    @property
    def step(self) -> int:
        """Optimizer steps taken; setting it sets every member's."""
        return max((algorithm.step for algorithm in self.algorithms), default=0)

    @step.setter
    def step(self, value: int) -> None:
        for algorithm in self.algorithms:
            algorithm.step = value

    @property
    def num_updates(self) -> int:
        """Mask updates that the member with most of them made."""
        return max((algorithm.num_updates for algorithm in self.algorithms), default=0)

    @property
    def needs_dense_gradient(self) -> bool:
        """True if a member needs dense gradients on the step about to be taken."""
        return any(algorithm.needs_dense_gradient for algorithm in self.algorithms)

    def update(self, optimizer: Optimizer | None = None) -> None:
        """Update the masks of every member now."""
        for algorithm in self.algorithms:
            algorithm.call_update(optimizer)

    def divide_model(self, model: nn.Module) -> list[tuple[SparsityAlgorithm, Found]]:
        """Parameters of a model by the first filter that matches.

        ValueError if globs match none; a callable that takes none, and one glob of several, are
        warned of.
        """
        if not self._members:
            raise ValueError("a Group needs at least one algorithm before it is applied")
        root = unwrap(model)
        parts: list[Found] = [[] for _ in self._members]
        names = []
        for found in find_parameters(model):
            names.append(found[0])
            for part, (param_filter, _) in zip(parts, self._members, strict=True):
                if _matches(param_filter, found, root):
                    part.append(found)
                    break
        if self.seed is None:
            self.seed = distributed.shared_seed(torch.initial_seed())
        for algorithm in self.algorithms:
            if algorithm.seed is None:
                algorithm.seed = self.seed
        for part, (param_filter, algorithm) in zip(parts, self._members, strict=True):
            name = type(algorithm).__name__
            if not part:
                shadowed = any(
                    _matches(param_filter, found, root) for found in find_parameters(model)
                )
                lack = "is left by earlier filters for" if shadowed else "matches"
                idle = f"no parameter {lack} {_describe(param_filter)}, given to {name}"
                if not callable(param_filter):
                    raise ValueError(idle + _tied_to(param_filter, root))
                warn(idle)
            elif isinstance(param_filter, list):
                known = [*names, *_other_names(part, root)]
                for glob in dict.fromkeys(param_filter):
                    if not any(fnmatchcase(other, glob) for other in known):
                        where = f"one of the globs given to {name}{_tied_to(glob, root)}"
                        warn(f"no parameter matches {glob!r}, {where}")
            elif isinstance(param_filter, str):
                taken = {id(module._parameters[n]) for own in parts for _, module, n in own}
                if tie := _tied_to(param_filter, root, taken):
                    warn(f"{param_filter!r} leaves a tied weight dense{tie}")
        return list(zip(self.algorithms, parts, strict=True))

    def register_target_sparsity_hook(self, hook: Callable) -> list[RemovableHandle]:
        """Register the hook on every member; returns a list of handles."""
        return [a.register_target_sparsity_hook(hook) for a in self.algorithms]

    def register_computed_sparsity_hook(self, hook: Callable) -> list[RemovableHandle]:
        """Register the hook on every member; returns a list of handles."""
        return [a.register_computed_sparsity_hook(hook) for a in self.algorithms]

    def state_dict(self) -> dict[str, Any]:
        """State of every member, in order."""
        return {
            "step": self.step,
            "seed": self.seed,
            "groups": [algorithm.state_dict() for algorithm in self.algorithms],
        }

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore `state_dict`; the Cerebras library's list of states loads too.

        Raises:
            ValueError: If the number of members differs, or a state does not fit (TypeError if it
                is none); the group and its members are as they were then.
        """
        is_list = isinstance(state_dict, (list, tuple))
        if not is_list and not isinstance(state_dict, Mapping):
            raise TypeError(
                f"the state of a Group must be a dict or a list, not {state_dict!r:.80}"
            )
        if not is_list:
            check_counters(state_dict)
        states = state_dict if is_list else state_dict.get("groups", ())
        if not isinstance(states, (list, tuple)):
            raise ValueError(f"the state has groups={states!r:.80}, which must be a list")
        if len(states) != len(self._members):
            raise ValueError(
                f"the state holds {len(states)} algorithms, the group {len(self._members)}"
            )
        if not is_list:
            warn_of_seed(state_dict, self.given_seed)
        before = [algorithm.state_dict() for algorithm in self.algorithms]
        try:
            for algorithm, state in zip(self.algorithms, states, strict=True):
                if not (is_list and not state):  # the Cerebras library's Static has no state
                    algorithm.load_state_dict(state)
        except BaseException:
            for algorithm, state in zip(self.algorithms, before, strict=True):
                algorithm.load_state_dict(state)
            raise
        if not is_list:
            self.seed = state_dict.get("seed", self.seed)

    def __repr__(self) -> str:
        return f"Group({', '.join(map(repr, self.algorithms))})"


SparsityAlgorithm.register(Group)


def _matches(param_filter: Filter, found: tuple[str, nn.Module, str], model: nn.Module) -> bool:
    name, module, param_name = found
    if isinstance(param_filter, str):
        return fnmatchcase(name, param_filter)
    if not callable(param_filter):
        return any(fnmatchcase(name, glob) for glob in param_filter)
    arguments = (name, module._parameters[param_name], model)
    return bool(param_filter(*arguments[: _num_arguments(param_filter)]))


def _other_names(part: Iterable[tuple[str, nn.Module, str]], model: nn.Module) -> list[str]:
    """All names that a model has for the parameters of a part; a tied one has several."""
    own = {id(module._parameters[name]) for _, module, name in part}
    named = model.named_parameters(remove_duplicate=False)
    return [WRAPPER.sub("", name) for name, parameter in named if id(parameter) in own]


def _tied_to(
    param_filter: str | Sequence[str], model: nn.Module, taken: Collection[int] = ()
) -> str:
    """The end of a sentence: which further name of a tied weight globs ask for; or nothing.

    ``taken`` are the ids of parameters that filters match.
    """
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        name = WRAPPER.sub("", name)
        own = first.setdefault(id(parameter), name)
        globs = [param_filter] if isinstance(param_filter, str) else param_filter
        matches = own != name and any(fnmatchcase(name, glob) for glob in globs)
        if matches and id(parameter) not in taken:
            return f"; {name!r} is tied to {own!r}, and filters see that name"
    return ""


def _num_arguments(function: Callable) -> int:
    if (parameters := positional(function)) is None:
        return 2
    return 3 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else min(3, len(parameters))


def _describe(param_filter: Filter) -> str:
    if callable(param_filter):
        return f"the filter {getattr(param_filter, '__name__', repr(param_filter))}"
    return repr(param_filter)
