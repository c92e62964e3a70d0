"""SparsityAlgorithm: which masks there are. It knows tensors, masks and its schedule.

What happens in a step of the optimizer, and when, is in `sparse_lib.core.driver`.
"""

from __future__ import annotations

import inspect
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.checks import check_integer, check_seed
from sparse_lib.core import averages, distributed, registry  # noqa: F401 (averages copy masks)
from sparse_lib.core.applied import Applied, register_hook
from sparse_lib.core.dense_gradients import DenseGradients
from sparse_lib.core.driver import Found
from sparse_lib.core.metrics import Work
from sparse_lib.core.parameter import Clock, FirstMask, SparseParameter, find_parameters, warn
from sparse_lib.core.states import check_state, warn_of_changes, warn_of_seed
from sparse_lib.core.targets import Levels
from sparse_lib.masks import shards
from sparse_lib.masks.init import make_init_method
from sparse_lib.masks.makers import generator, make_mask_topk_sparsity
from sparse_lib.masks.shapers import ScoreShaper, make_score_shaper
from sparse_lib.rules import Rules, rules_of
from sparse_lib.schedules import Level


class SparsityAlgorithm(Applied):
    """Base of all sparsity algorithms; subclasses define `update`.

    ``update`` is called after every optimizer step while ``autoupdate`` is true; both
    ``update(self)`` and ``update(self, optimizer)`` work. Subclasses need no ``__init__``.

    Args:
        sparsity: Fraction of zeros: a number in [0, 1], a schedule in any form that
            `sparse_lib.schedules.make_hyperparameter_schedule` takes, or a dict from
            parameter name (glob) to these. None starts dense.
        init_method: First masks: ``"random"``, ``"topk"``, ... or a callable; see
            `sparse_lib.masks.init`.
        seed: Seed of every random choice; None derives it from ``torch.initial_seed()``.
        distribution: How the sparsity is spread over tensors (``"uniform"``, ``"er"``, ``"erk"``,
            ...); None means uniform. See `sparse_lib.masks.distributions`.
        score_shaper: Which weights of a tensor compete; None means all. What
            `sparse_lib.masks.shapers.make_score_shaper` takes, such as ``"2:4"``.
        schedule: Another name of ``sparsity``, as configs have it.
        compat: Whose `sparse_lib.rules.Rules` hold: None for this library's, or a name such
            as ``"cstorch-2.10"``.

    Raises:
        ValueError: If an argument is out of range, or a name given for one is unknown.
        TypeError: If an argument has a wrong type.
        SettingError: If there is no argument of a name.
    """

    needs_sparsity: ClassVar[bool] = False
    """True if ``sparsity`` must be given (unless ``init_method`` is ``"from_zeros"``)."""

    masks_gradients: ClassVar[bool] = True
    """False if the optimizer is to see dense gradients; masks are then updated from weights that it
    wrote everywhere, and weights are masked after that."""

    masks_states: ClassVar[bool] = True
    """False if optimizer states are left as the optimizer made them."""

    updates_masks: ClassVar[bool] = True
    """False if masks never change."""

    uses_dense_gradient: ClassVar[bool] = False
    """True if updates read :meth:`DynamicSparsityAlgorithm.dense_gradient`."""

    exact_counts: ClassVar[bool] = True
    """False if a mask may have fewer weights than ``num_nonzero(target, n)``."""

    counts_per: ClassVar[str] = "tensor"
    """``"model"`` if masks have what the targets ask for in all tensors together, not in each."""

    _at: SparseParameter | None = None  # whose mask is being made

    in_registry: ClassVar[bool] = True
    """False for classes that ``configure`` should not find by name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        registry.register(cls)
        cls.__signature__ = registry.constructor_signature(cls)  # type: ignore[attr-defined]
        cls.__doc__ = registry.completed_docstring(cls)

    def __init__(
        self,
        sparsity: Level | None = None,
        init_method: str | Callable = "random",
        *,
        seed: int | None = None,
        distribution: str | Mapping | Callable | None = None,
        score_shaper: str | Mapping | ScoreShaper | None = None,
        schedule: Level | None = None,
        compat: str | Rules | None = None,
        **unknown: Any,
    ) -> None:
        registry.check_unknown(type(self), unknown)
        if schedule is not None:
            if sparsity is not None:
                raise ValueError("give sparsity or schedule, not both")
            sparsity = schedule
        if sparsity is None and self.needs_sparsity and init_method != "from_zeros":
            raise ValueError(f"{type(self).__name__} needs a sparsity, a number in [0, 1]")
        super().__init__()
        self.rules = rules_of(compat)
        self.init_method = init_method
        self.seed = self.given_seed = check_seed(seed)
        self._score_shaper = make_score_shaper(score_shaper)
        self._init = make_init_method(init_method, compat=self.rules)
        self._levels = Levels(0.0 if sparsity is None else sparsity, distribution, rules=self.rules)
        self.clock = Clock()
        self.num_updates = 0
        """Mask updates made; index of the random streams, where 0 is initialisation."""
        self.sparse_params: dict[str, SparseParameter] = {}
        self.dense_gradients = DenseGradients(self.sparse_params)
        self.without_gradient: set[str] = set()
        """Names of parameters that no gradient reached in the last step; they keep their masks."""
        self.state_was_loaded = False
        self._target_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._computed_hooks: OrderedDict[int, Callable] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        hooks = ("_target_hooks", "_computed_hooks")
        return super().__getstate__() | {name: OrderedDict() for name in hooks}

    @property
    def algorithms(self) -> Sequence[SparsityAlgorithm]:
        """The algorithm alone."""
        return (self,)

    @property
    def step(self) -> int:
        """Optimizer steps taken; a step that a GradScaler skips does not count."""
        return self.clock.step

    @step.setter
    def step(self, value: int) -> None:
        self.clock.step = check_integer(value, "step", 0)
        self.driver.prepare_next_step()

    # ------------------------------------------------------------------ what a subclass defines

    @abstractmethod
    def update(self, optimizer: Optimizer | None = None) -> None:
        """Change masks, by setting ``.mask`` of entries of `sparse_params`.

        A subclass may leave out the optimizer, which has just taken a step.
        """

    def prepare(self, optimizer: Optimizer) -> None:
        """Change gradients or weights right before the optimizer's update, in place.

        With a closure it is called after each evaluation, when the gradients are there.
        """

    def project(self, optimizer: Optimizer) -> None:
        """Change weights right after the optimizer's update, in place; masks are updated next.

        It is called also after a step that loss scaling made the optimizer skip.
        """

    def is_update_step(self, step: int) -> bool:
        """Whether masks are updated after optimizer step ``step`` (1 is the first)."""
        return True

    def is_dense_after(self, num_updates: int) -> bool:
        """Whether so many updates leave all weights present, whatever the sparsity says."""
        return False

    def targets_at(self, step: int) -> dict[str, float]:
        """The sparsity that each mask gets at an update at a step, by full name."""
        return self._levels.targets(step, is_update_step=True)

    def initial_targets(self) -> dict[str, float]:
        """The sparsity that each first mask gets, by full name."""
        return self.targets_at(0)

    def initial_mask(self, sparse: SparseParameter, sparsity: float) -> Tensor:
        """The first mask of a parameter: bool, of its shape."""
        shaper = self._first_shaper(sparse)
        return self._init(sparse.param, sparsity, shaper, self.generator(sparse.name))

    def advance_schedules(self, due: bool) -> None:
        """Tell schedules with state that a step is over, and whether it updated masks."""
        self._levels.advance(due)

    @property
    def needs_dense_gradient(self) -> bool:
        """True if the step about to be taken needs dense weight gradients."""
        return not self.masks_gradients

    # --------------------------------------------------------------- what the driver asks and tells

    @property
    def keeps_dense_gradient(self) -> bool:
        """True if dense gradients of the step about to be taken are to be kept."""
        return False

    @property
    def rests_weights(self) -> bool:
        """True if the optimizer is to leave all weights alone in the step about to be taken."""
        return False

    def first_masks(self, params: Iterable[SparseParameter]) -> list[FirstMask]:
        """Make the first mask of each parameter, or check the one that it has."""
        with torch.no_grad():
            targets, found = self.initial_targets(), []
            for sparse in params:
                mask = None
                if not sparse.initialized:
                    with self.making_mask_of(sparse):
                        mask = self.initial_mask(sparse, targets[sparse.name])
                    sparse.check_directions(mask)
                elif (shaper := self._shaper_of(sparse)) and not sparse.mask.is_meta:
                    shaper.check_mask(sparse.name, shards.whole(sparse.mask))
                found.append(FirstMask(sparse, targets[sparse.name], mask))
        return found

    @property
    def score_shaper(self) -> ScoreShaper | None:
        """Which weights compete; while a mask is made, for the layer whose weight it is of."""
        return self._score_shaper if self._at is None else self._shaper_of(self._at)

    def _shaper_of(self, sparse: SparseParameter) -> ScoreShaper | None:
        return self._score_shaper and self._score_shaper.for_layer(sparse.layout)

    def _first_shaper(self, sparse: SparseParameter) -> ScoreShaper | None:
        shaper = self._score_shaper or getattr(self._init, "default_shaper", None)
        return shaper and shaper.for_layer(sparse.layout)

    @contextmanager
    def making_mask_of(self, sparse: SparseParameter) -> Iterator[None]:
        """A context in which `score_shaper` is that of this parameter's layer."""
        before, self._at = self._at, sparse
        try:
            yield
        finally:
            self._at = before

    def check_shape(self, sparse: SparseParameter) -> None:
        """Raise ValueError where there are no such pools, or outputs, in a parameter."""
        try:
            if (shaper := self._first_shaper(sparse)) is not None:
                shaper.check_shape(tuple(sparse.param.shape))
        except ValueError as error:
            raise ValueError(f"parameter {sparse.name!r}: {error}") from error

    def why_dense(self, sparse: SparseParameter) -> str | None:
        """Why a parameter stays dense where no pools fit it; raises if the shaper refuses that."""
        try:
            if not sparse.initialized:
                self.check_shape(sparse)
        except ValueError as error:
            if self._score_shaper is None or self._score_shaper.remainder != "dense":
                raise
            return f"{error}; it stays dense"
        return None

    @torch.no_grad()
    def put_first_masks(self, first: Sequence[FirstMask]) -> None:
        """Set what `first_masks` made."""
        for sparse, target, mask in first:
            sparse.target = target
            if mask is None:
                sparse.prune()
            else:
                sparse.mask = mask

    def weight_was_loaded(self, sparse: SparseParameter) -> bool:
        """``load_state_dict`` wrote a weight, not masked yet; True if other values are kept now."""
        return False

    def weight_was_written(self, sparse: SparseParameter, weight: Tensor) -> None:
        """A weight was written between steps, or another is put in its place; not masked yet."""

    def place_hidden(self) -> None:
        """Put hidden values in place, for the optimizer to read and write."""

    def read_gradients(self) -> None:
        """Take in the gradients of a step, right after the optimizer's update."""

    def run_update(self, optimizer: Optimizer) -> None:
        """Call `update`, which may change weights and masks in any way, and enforce masks."""
        self.num_updates += 1
        self.call_update(optimizer)

    def call_update(self, optimizer: Optimizer | None) -> None:
        """Call `update`, with the optimizer if its signature takes one, and enforce masks."""
        arguments = (optimizer,) if inspect.signature(self.update).parameters else ()
        try:
            self.update(*arguments)
        finally:
            self.driver.enforce(self)

    def divide_model(self, model: nn.Module) -> list[tuple[SparsityAlgorithm, Found]]:
        """All parameters of the model that may be sparse."""
        found = list(find_parameters(model))
        if self.seed is None:
            self.seed = distributed.shared_seed(torch.initial_seed())
        if not found:
            warn(f"{type(self).__name__} found no parameter to sparsify")
        return [(self, found)]

    # ------------------------------------------------------------------------------ for all uses

    @property
    def sparsity(self) -> Levels:
        """Schedules of the target sparsity; ``sparsity[parameter or name]`` is one of them."""
        return self._levels

    @sparsity.setter
    def sparsity(self, spec: Any) -> None:
        params, distribution = self._levels.params, self._levels.distribution
        self._levels = Levels(spec, distribution, rules=self.rules)
        self._levels.params = params

    def generator(self, param: Tensor | str) -> torch.Generator:
        """A new CPU generator, seeded by the seed, the parameter's name and `num_updates`.

        So every call within an update gives the same numbers from the start. For two draws that
        differ, draw both from one generator, or give the second one a name of its own: a text in
        place of the sparse parameter, such as ``f"{sparse.name}/noise"``.
        """
        name = param if isinstance(param, str) else self.sparse_param(param).name
        if self.seed is None:
            self.seed = torch.initial_seed()
        return generator(self.seed, name, self.num_updates)

    def keep_best(self, score: Tensor, sparsity: float, **ties: Any) -> Tensor:
        """The mask of the highest scores, in the algorithm's pools and by its rules.

        See `sparse_lib.masks.make_mask_topk_sparsity`, which also takes ``ties``.
        """
        return make_mask_topk_sparsity(
            score, sparsity, self.score_shaper, compat=self.rules, **ties
        )

    def sparse_param(self, param: Tensor) -> SparseParameter:
        """The sparse parameter of a tensor; ValueError if the algorithm has none."""
        found = self.get_sparse_params(param)
        if not isinstance(found, SparseParameter):
            raise ValueError("this tensor is not a sparse parameter of the algorithm")
        return found

    def register_target_sparsity_hook(self, hook: Callable) -> RemovableHandle:
        """Call ``hook(algorithm, name, target)`` once per distinct schedule after each step.

        ``name`` is the common prefix of the parameters' names and ``*``. Returns a handle with
        ``remove()``.
        """
        return register_hook(self._target_hooks, hook)

    def register_computed_sparsity_hook(self, hook: Callable) -> RemovableHandle:
        """Call ``hook(algorithm, name, sparsity of the mask)`` per parameter after each step.

        Returns a handle with ``remove()``.
        """
        return register_hook(self._computed_hooks, hook)

    def call_hooks(self) -> None:
        """Call the hooks."""
        if self._target_hooks:
            groups: dict[int, list[str]] = {}
            for name in self.sparse_params:
                groups.setdefault(id(self._levels[name]), []).append(name)
            for names in groups.values():
                target = self.scheduled(names[0])
                for hook in list(self._target_hooks.values()):
                    hook(self, os.path.commonprefix(names) + "*", target)
        if self._computed_hooks:
            for name, sparse in self.sparse_params.items():
                for hook in list(self._computed_hooks.values()):
                    hook(self, name, sparse.sparsity)

    def scheduled(self, name: str) -> float:
        """The scheduled sparsity of a parameter at the present step, in [0, 1]."""
        return min(max(float(self._levels[name](self.step)), 0.0), 1.0)

    def state_dict(self) -> dict[str, Any]:
        """State for a bit-exact resume; the masks are in the model's own state dict."""
        return {
            "algorithm": type(self).__name__,
            "step": self.step,
            "num_updates": self.num_updates,
            "seed": self.seed,
            "sparsity": self._levels.state_dict(),
            "asked": self._asked(),
            "params": {
                name: {
                    "target": sparse.target,
                    "history": sparse.history.state_dict(),
                    "work": asdict(sparse.count_work()),
                }
                for name, sparse in self.sparse_params.items()
            },
        }

    def _asked(self) -> dict[str, str | None]:
        """The schedules that were asked for, as text; None for functions of users."""
        return {"sparsity": self._levels.described()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`; the masks come with the model's own state dict.

        The state that cerebras-pytorch 2.2 and later save loads too. A state of another algorithm,
        sparsity, update schedule or seed is loaded with a warning.

        Raises:
            ValueError: If the state does not fit this algorithm.
        """
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"not the state of a {type(self).__name__}: {state_dict!r:.80}")
        check_state(state_dict, self.sparse_params)
        own, saved = type(self).__name__, state_dict.get("algorithm")
        if isinstance(saved, str) and saved != own:
            warn(f"the state was saved by {saved} and is loaded into {own}, which goes on from it")
        if saved == own:
            warn_of_changes(state_dict.get("asked"), self._asked(), self.updates_masks)
        warn_of_seed(state_dict, self.given_seed)
        self.state_was_loaded = True
        self.clock.step = int(state_dict["step"])
        self.num_updates = int(state_dict.get("num_updates", 0))
        self.seed = state_dict.get("seed", self.seed)
        if isinstance(state_dict.get("sparsity"), list):
            self._levels.load_state_dict(state_dict["sparsity"])
        elif isinstance(state_dict.get("sparsity"), Mapping):
            for name, saved in state_dict["sparsity"].items():
                self._levels[name].load_state_dict(dict(saved))
        for name, saved in state_dict.get("params", {}).items():
            sparse = self.sparse_params[name]
            sparse.target = saved["target"]
            sparse.history.load_state_dict(saved["history"], sparse.mask)
            sparse.work = Work(**saved["work"])
        self.driver.prepare_next_step()

    def __repr__(self) -> str:
        update = getattr(self, "update_schedule", None)
        levels = [s.described() or type(s).__name__ for s in self._levels.schedules]
        settings = [f"sparsity={', '.join(levels)}", *([f"update={update!r}"] if update else [])]
        done = f"step={self.step}, num_sparse_params={self.num_sparse_params}"
        return f"{type(self).__name__}({', '.join(settings)}, {done})"
