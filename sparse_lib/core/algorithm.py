"""SparsityAlgorithm: which masks there are, and what a step of the optimizer does to them.

When each part of a step happens is said in :mod:`sparse_lib.core.connection`.
"""

from __future__ import annotations

import inspect
import operator
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.checks import closest
from sparse_lib.core import averages, distributed  # noqa: F401 (averages copy masks)
from sparse_lib.core.adoption import sparsify
from sparse_lib.core.codes import Codes
from sparse_lib.core.connection import Connection
from sparse_lib.core.forgotten import Forgotten
from sparse_lib.core.guard import Driver, select_together, watch_readers
from sparse_lib.core.history import Work
from sparse_lib.core.metrics import summary, training_flops
from sparse_lib.core.optimizers import (
    forget_curvature,
    innermost,
    states_like,
)
from sparse_lib.core.parameter import (
    Clock,
    SparseParameter,
    check_driven,
    find_parameters,
    is_outermost_apply,
    warn,
)
from sparse_lib.core.registry import constructor_keys, register
from sparse_lib.core.states import check_state, warn_of_changes, warn_of_seed
from sparse_lib.core.targets import Levels
from sparse_lib.core.watch import Watch, some
from sparse_lib.flops.model import ModelFlops
from sparse_lib.masks import shards
from sparse_lib.masks.init import make_init_method
from sparse_lib.masks.makers import generator
from sparse_lib.masks.shapers import NMScoreShaper, ScoreShaper, make_score_shaper
from sparse_lib.rules import Rules, rules_of
from sparse_lib.schedules.values import Constant


class SparsityAlgorithm(ABC):
    """Base of all sparsity algorithms; subclasses define :meth:`update`.

    ``update`` is called after every optimizer step while ``autoupdate`` is true; both
    ``update(self)`` and ``update(self, optimizer)`` work. Subclasses need no ``__init__``.

    Args:
        sparsity: Fraction of zeros: a number in [0, 1], a schedule in any form that
            :func:`sparse_lib.schedules.make_hyperparameter_schedule` takes, or a dict from
            parameter name (glob) to these. None starts dense.
        init_method: First masks: ``"random"``, ``"topk"``, ... or a callable; see
            :mod:`sparse_lib.masks.init`.
        seed: Seed of every random choice; None derives it from ``torch.initial_seed()``.
        distribution: How the sparsity is spread over tensors (``"uniform"``, ``"er"``, ``"erk"``,
            ...); None means uniform. See :mod:`sparse_lib.masks.distributions`.
        score_shaper: Which weights of a tensor compete; None means all. What
            :func:`sparse_lib.masks.shapers.make_score_shaper` takes, such as ``"2:4"``.
        schedule: Another name of ``sparsity``, as configs have it.
        compat: Whose :class:`sparse_lib.rules.Rules` hold: None for this library's, or a name such
            as ``"cstorch-2.10"``.

    Raises:
        ValueError: If an argument is out of range, or a name given for one is unknown.
        TypeError: If an argument has a wrong type, or there is none of its name.
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

    exact_counts: ClassVar[bool] = True
    """False if a mask may have fewer weights than ``num_nonzero(target, n)``."""

    counts_per: ClassVar[str] = "tensor"
    """``"model"`` if masks have what the targets ask for in all tensors together, not in each."""

    _at: SparseParameter | None = None  # whose mask is being made

    in_registry: ClassVar[bool] = True
    """False for classes that ``configure`` should not find by name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    def __init__(
        self,
        sparsity: Any = None,
        init_method: str | Callable = "random",
        *,
        seed: int | None = None,
        distribution: str | Mapping | Callable | None = None,
        score_shaper: str | Mapping | ScoreShaper | None = None,
        schedule: Any = None,
        compat: str | Rules | None = None,
        **unknown: Any,
    ) -> None:
        for key in unknown:
            hint = closest(key, constructor_keys(type(self)))
            raise TypeError(f"{type(self).__name__} takes no argument {key!r}; {hint}")
        if schedule is not None:
            if sparsity is not None:
                raise ValueError(
                    f"sparsity is {sparsity!r} and schedule is {schedule!r}; give sparsity or "
                    "schedule, not both"
                )
            sparsity = schedule
        if sparsity is None and self.needs_sparsity and init_method != "from_zeros":
            raise ValueError(f"{type(self).__name__} needs a sparsity, a number in [0, 1]")
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
            raise TypeError(f"seed must be an integer or None, not {seed!r}")
        self.rules = rules_of(compat)
        self.init_method = init_method
        self.seed = self._given_seed = None if seed is None else operator.index(seed)
        self._score_shaper = make_score_shaper(score_shaper)
        self._init = make_init_method(init_method, rules=self.rules)
        self._distribution = distribution
        self._levels = Levels(0.0 if sparsity is None else sparsity, distribution, rules=self.rules)
        self._check_level()
        self._reset()

    def _check_level(self) -> None:
        """Warn of a constant sparsity below what N:M masks have at the least."""
        shaper = self._score_shaper
        if isinstance(shaper, NMScoreShaper):
            least = 1 - shaper.n / shaper.m
            for _, schedule in self._levels.entries:
                if isinstance(schedule, Constant) and 0 < schedule.value < least:
                    warn(
                        f"sparsity is {schedule.value}, but {shaper.n}:{shaper.m} masks have at "
                        f"least {least:g}, which they will get"
                    )

    def _reset(self) -> None:
        self._clock = Clock()
        self.num_updates = 0
        """Mask updates made; index of the random streams, where 0 is initialisation."""
        self.sparse_params: dict[str, SparseParameter] = {}
        """Sparse parameters by full name, in model order."""
        self._autoupdate = True
        self._was_applied = False
        self._watch = Watch()
        self._forgotten = Forgotten()
        self._target_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._computed_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._unplug()

    def _unplug(self) -> None:
        self._connection: Connection | None = None

    @property
    def _optimizer(self) -> Optimizer | None:
        """What drives the algorithm, if anything does."""
        return None if self._connection is None else self._connection.optimizer

    def _connect(self, connection: Connection) -> None:
        """Let an optimizer drive the algorithm from now on."""
        self._connection = connection
        self._forgotten.optimizer_applied()

    def _after_load(self) -> None:
        """Called after the optimizer loaded a state."""
        self._forgotten.optimizer_loaded()

    def missed_step(self, count: int) -> None:
        """Called after the ``count``-th step of an optimizer that the algorithm does not drive."""
        if self.updates_masks and self.autoupdate and not self.drives_optimizer:
            if self.num_updates == 0 and self._would_update(count):
                self._forgotten.missed_update(type(self).__name__, count)

    def _would_update(self, step: int) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        transient = {"_connection", "_target_hooks", "_computed_hooks"}
        state = {key: value for key, value in self.__dict__.items() if key not in transient}
        # A copy of model, algorithm and optimizer together goes on training sparsely.
        own = self._connection is not None and self._connection.is_of(self)
        return state | {"_driven": self._optimizer if own else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({key: value for key, value in state.items() if key != "_driven"})
        self._target_hooks, self._computed_hooks = OrderedDict(), OrderedDict()
        self._unplug()
        self._claim()
        if (optimizer := state.get("_driven")) is not None:
            connection = Connection(self, optimizer)
            self._connect(connection)
            connection.find_not_held(self.sparse_params)
            self._prepare_next_step()

    def _claim(self, driver: Driver | None = None) -> None:
        for sparse in self.sparse_params.values():
            sparse.guard.claim(type(self).__name__, driver or self, self.masks_gradients)

    @property
    def step(self) -> int:
        """Optimizer steps taken; a step that a GradScaler skips does not count."""
        return self._clock.step

    @step.setter
    def step(self, value: int) -> None:
        self._clock.step = value

    # ------------------------------------------------------------------ what a subclass defines

    @abstractmethod
    def update(self, optimizer: Optimizer | None = None) -> None:
        """Change masks, by setting ``.mask`` of entries of :attr:`sparse_params`.

        Args:
            optimizer: What has just taken a step; a subclass may leave this argument out.
        """

    def prepare(self, optimizer: Optimizer) -> None:  # noqa: B027 (few algorithms need it)
        """Change gradients or weights right before the optimizer's update, in place.

        With a closure it is called after each evaluation, when the gradients are there.
        """

    def project(self, optimizer: Optimizer) -> None:  # noqa: B027
        """Change weights right after the optimizer's update, in place; masks are updated next.

        It is called also after a step that loss scaling made the optimizer skip.
        """

    def is_dense_after(self, num_updates: int) -> bool:
        """Whether so many updates leave all weights present, whatever the sparsity says."""
        return False

    @property
    def sparsity(self) -> Levels:
        """Schedules of the target sparsity; ``sparsity[parameter or name]`` is one of them."""
        return self._levels

    @sparsity.setter
    def sparsity(self, spec: Any) -> None:
        params = self._levels.params
        self._levels = Levels(spec, self._distribution, rules=self.rules)
        self._levels.params = params

    @property
    def autoupdate(self) -> bool:
        """Whether masks are updated automatically after optimizer steps; masking always is."""
        return self._autoupdate

    @autoupdate.setter
    def autoupdate(self, value: bool) -> None:
        self._autoupdate = bool(value)
        self._prepare_next_step()

    @property
    def needs_dense_gradient(self) -> bool:
        """True if the step about to be taken needs dense weight gradients."""
        return not self.masks_gradients

    @property
    def drives_optimizer(self) -> bool:
        """True if an optimizer's steps enforce and update the masks."""
        return self._optimizer is not None

    def drives(self, param: Tensor) -> bool:
        """True if an optimizer's steps enforce the mask of this parameter."""
        connection = self._connection
        return connection is not None and self.drives_optimizer and connection.holds(param)

    @property
    def num_sparse_params(self) -> int:
        """Number of sparse parameter tensors."""
        return len(self.sparse_params)

    def get_sparse_params(
        self, obj: Tensor | nn.Module | Optimizer
    ) -> SparseParameter | list[SparseParameter] | None:
        """The sparse parameter of a tensor (None if it has none), or those of a container.

        Raises:
            TypeError: If ``obj`` is none of these.
        """
        if isinstance(obj, Tensor):
            return next((s for s in self.sparse_params.values() if s.param is obj), None)
        if isinstance(obj, nn.Module):
            wanted = {id(param) for param in obj.parameters()}
        elif hasattr(obj, "param_groups"):
            wanted = {id(param) for group in obj.param_groups for param in group["params"]}
        else:
            raise TypeError(
                f"expected a tensor, a module or an optimizer, not {type(obj).__name__}"
            )
        return [s for s in self.sparse_params.values() if id(s.param) in wanted]

    def generator(self, param: Tensor | str) -> torch.Generator:
        """A new CPU generator, seeded by the seed, the parameter's name and :attr:`num_updates`.

        So every call within an update gives the same numbers from the start. For two draws that
        differ, draw both from one generator, or give the second one a name of its own.

        Args:
            param: A sparse parameter; or a text in place of its name, such as
                ``f"{sparse.name}/noise"``.

        Raises:
            ValueError: If a tensor is no sparse parameter of the algorithm.
        """
        name = param if isinstance(param, str) else self._by_param(param).name
        if self.seed is None:
            self.seed = torch.initial_seed()
        return generator(self.seed, name, self.num_updates)

    def _by_param(self, param: Tensor) -> SparseParameter:
        found = self.get_sparse_params(param)
        if not isinstance(found, SparseParameter):
            raise ValueError("this tensor is not a sparse parameter of the algorithm")
        return found

    def apply(self, target: Any, *others: Any) -> Any:
        """Sparsify a model (first) or an optimizer, in place.

        On a model: every parameter gets a ``<name>_mask`` bool buffer and its masked weights
        become zero now. On an optimizer: its states are masked, and masks are enforced and
        updated by ``optimizer.step()``; it should hold all trainable sparse parameters. After a
        module of the model was replaced, apply the algorithm to the model again.

        Returns:
            The target.

        Raises:
            ValueError: If the model or optimizer cannot be sparsified; the message says why, and
                all is left as it was.
            RuntimeError: If weights of the model were tied or taken away after it got masks.
            TypeError: If the target is neither, or there are several.
        """
        if others:
            raise TypeError(
                "apply takes one model or one optimizer: call apply(model), then apply(optimizer)"
            )
        self._check_made()
        if isinstance(target, nn.Module):
            self._apply_to_model(target)
        elif hasattr(target, "param_groups"):
            self._apply_to_optimizer(target)
        else:
            raise TypeError(f"apply takes a torch module or optimizer, not {type(target).__name__}")
        return target

    def _check_made(self) -> None:
        """Raise TypeError if a subclass left out the constructor of its base."""
        if "_clock" not in vars(self):
            raise TypeError(
                f"{type(self).__name__}.__init__ does not call super().__init__(...), which takes "
                "sparsity and all other settings"
            )

    def __call__(self, target: Any) -> None:
        """What ``model.apply(self)`` calls for each submodule, children first."""
        if not isinstance(target, nn.Module) or is_outermost_apply(target):
            self.apply(target)

    def _apply_to_model(self, model: nn.Module) -> None:
        self._let_go_of_replaced()
        found = list(find_parameters(model))
        self._agree_on_seed()
        sparsify(model, [(self, found)])
        watch_readers(model)
        self._remember(model)
        if not found:
            warn(f"{type(self).__name__} found no parameter to sparsify")

    def _remember(self, model: nn.Module) -> None:
        """Watch whether the modules of a model's sparse parameters stay in it."""
        self._was_applied = True
        self._watch.add(model, self.sparse_params)
        if self._connection is not None:
            self._connection.find_not_held(self.sparse_params)

    def _took_nothing(self) -> str:
        """Why an algorithm that was applied has no parameter."""
        return "no parameter is trainable or may be masked"

    def _let_go_of_replaced(self) -> None:
        for module in self._watch.replaced(self.sparse_params):
            self.detach(module)

    def _agree_on_seed(self) -> None:
        if self.seed is None:
            self.seed = distributed.shared_seed(torch.initial_seed())

    def initialize(self) -> None:
        """Make the masks that do not exist; :meth:`apply` on a model includes this."""
        params = list(self.sparse_params.values())
        self._put_first_masks(params, self._first_masks(params))

    @torch.no_grad()
    def _first_masks(self, params: list[SparseParameter]) -> list[tuple[float, Tensor | None]]:
        """Target and first mask of each parameter; the mask is None where there is one already."""
        targets = self._initial_targets()
        fresh = [sparse for sparse in params if not sparse.initialized]

        masks = {}
        for sparse in fresh:
            with self._making(sparse):
                masks[sparse.name] = self._initial_mask(sparse, targets[sparse.name])
            sparse.check_directions(masks[sparse.name])
        return [(targets[sparse.name], masks.get(sparse.name)) for sparse in params]

    @property
    def score_shaper(self) -> ScoreShaper | None:
        """Which weights compete; while a mask is made, for the layer whose weight it is of."""
        return self._score_shaper if self._at is None else self._shaper_of(self._at)

    def _shaper_of(self, sparse: SparseParameter) -> ScoreShaper | None:
        return self._score_shaper and self._score_shaper.for_layer(sparse.layout)

    @contextmanager
    def _making(self, sparse: SparseParameter) -> Iterator[None]:
        """Have :attr:`score_shaper` be of this parameter's layer."""
        before, self._at = self._at, sparse
        try:
            yield
        finally:
            self._at = before

    def _check_shape(self, sparse: SparseParameter) -> None:
        """Raise ValueError where there are no such pools, or outputs, in a parameter."""
        try:
            shaper = self._shaper_of(sparse)
            shaper = shaper or getattr(self._init, "default_shaper", None)
            if shaper is not None:
                shaper.for_layer(sparse.layout).check_shape(tuple(sparse.param.shape))
        except ValueError as error:
            raise ValueError(f"parameter {sparse.name!r}: {error}") from error

    @torch.no_grad()
    def _put_first_masks(
        self, params: list[SparseParameter], first: list[tuple[float, Tensor | None]]
    ) -> None:
        for sparse, (target, mask) in zip(params, first, strict=True):
            sparse.target = target
            if mask is None:
                sparse.prune()
            else:
                sparse.mask = mask

    def _initial_targets(self) -> dict[str, float]:
        return self._levels.targets(0, is_update_step=True)

    def _initial_mask(self, sparse: SparseParameter, sparsity: float) -> Tensor:
        shaper = self._shaper_of(sparse)
        default = getattr(self._init, "default_shaper", None)
        if shaper is None and default is not None:
            shaper = default.for_layer(sparse.layout)
        return self._init(sparse.param, sparsity, shaper, self.generator(sparse.name))

    def _apply_to_optimizer(self, optimizer: Any) -> None:
        optimizer = innermost(optimizer)
        if self._connection is not None and self.drives_optimizer:
            if self._optimizer is optimizer:
                self._connection.find_not_held(self.sparse_params)
                return
            raise ValueError(
                "this algorithm already drives another optimizer; let go of it first with "
                "detach(optimizer)"
            )
        if not hasattr(optimizer, "register_step_post_hook"):
            raise TypeError(f"apply takes a torch optimizer, not {type(optimizer).__name__}")
        if not self.sparse_params:
            raise ValueError(
                "the algorithm was applied to a model of which it took no parameter, so its "
                f"optimizer has nothing to mask: {self._took_nothing()}"
                if self._was_applied
                else "apply the algorithm to the model before its optimizer"
            )
        self._check_ties()
        for name, sparse in self.sparse_params.items():
            check_driven(name, sparse)
        if not self.get_sparse_params(optimizer):
            raise ValueError(
                "the optimizer holds none of the sparse parameters; if the model was copied or its "
                "layers were replaced since (as by prepare_qat), apply the algorithm to that model "
                "first"
            )
        connection = Connection(self, optimizer)
        self._connect(connection)
        for sparse in self.sparse_params.values():
            sparse.guard.ensure()
            sparse.prune()
            sparse.guard.is_left()
            self._mask_states_of(sparse, optimizer)
        self._prepare_next_step()
        if lacking := connection.find_not_held(self.sparse_params):
            warn(
                f"the optimizer does not hold {some(lacking)}, which the algorithm sparsifies; "
                "give it all sparse parameters, or each optimizer an algorithm of its own"
            )

    def detach(self, module: nn.Module | Optimizer | None = None) -> None:
        """Let go of a model's parameters and, when none are left, of the optimizer.

        Masks stay in the model as buffers, still enforced on weights' gradients; another
        algorithm may adopt them. :func:`sparse_lib.finalize` and :func:`sparse_lib.densify`
        call this themselves. Counters, seed and schedules stay as they are.

        Args:
            module: Whose parameters to let go; None means all. Given the optimizer that the
                algorithm was applied to, it lets go of that alone, and another may take its place.

        Raises:
            ValueError: If the algorithm was applied to another optimizer.
        """
        if isinstance(module, Optimizer):
            if self._optimizer not in (None, innermost(module)):
                raise ValueError("the algorithm was applied to another optimizer than this")
            self._let_go_of_optimizer()
            return
        gone = self.sparse_params.values() if module is None else self.get_sparse_params(module)
        assert isinstance(gone, Iterable)
        self._stop_preparing()
        for sparse in list(gone):
            sparse.guard.release()
            self.sparse_params.pop(sparse.name, None)
        if self.sparse_params:
            self._prepare_next_step()
        else:
            self._watch.forget()
            self._let_go_of_optimizer()

    def _let_go_of_optimizer(self) -> None:
        self._stop_preparing()
        if self._connection is not None and self._connection.is_of(self):
            self._connection.remove()
        self._unplug()

    def _check_ties(self) -> None:
        """Raise RuntimeError where two names that have masks have become one parameter."""
        names: dict[int, str] = {}
        for name, sparse in self.sparse_params.items():
            param = sparse.module._parameters.get(sparse.param_name)
            first = name if param is None else names.setdefault(id(param), name)
            if first != name:
                raise RuntimeError(
                    f"{name!r} was tied to {first!r} after sparsity was applied, and one weight "
                    "cannot obey two masks; tie weights first, then apply"
                )

    def _actors(self) -> Sequence[SparsityAlgorithm]:
        """Those that act on weights and gradients in a step: this one, or a group's members."""
        return (self,)

    def _check_step(self, optimizer: Optimizer) -> None:
        """See that the model is as it was, and hook parameters that are new."""
        self._watch.check(self.sparse_params)
        if self.updates_masks:
            params = self.sparse_params.values()
            self._forgotten.check_resume(type(self).__name__, self.step, params, optimizer)
        for name, sparse in self.sparse_params.items():
            if sparse.module._parameters.get(sparse.param_name) is None:
                raise RuntimeError(
                    f"{name!r} was taken out of its module after sparsity was applied; change the "
                    "model first, then apply"
                )
            sparse.guard.ensure()
            sparse.guard.is_being_written()

    def _place_hidden(self) -> None:  # noqa: B027 (few algorithms have any)
        """Put hidden values in place, for the optimizer to read and write."""

    def _show_sparse(self) -> dict[str, Tensor]:
        """Mask weights for a closure's evaluation; by name, what has to be put back after it."""
        written: dict[str, Tensor] = {}
        if self.masks_gradients:  # what is masked is not trained
            return written
        for name, sparse in self.sparse_params.items():
            weight = shards.local(sparse.param.detach())
            before = weight.clone()
            sparse.guard.select_weight()
            if not torch.equal(weight, before):
                written[name] = before
        return written

    def _put_back(self, written: Mapping[str, Tensor]) -> None:
        """Undo :meth:`_show_sparse`, of which ``written`` is."""
        for name, weight in written.items():
            shards.local(self.sparse_params[name].param.detach()).copy_(weight)

    def _before_step(self, optimizer: Optimizer) -> None:
        """Mask and change the gradients that the optimizer is about to read."""
        select_together(
            (sparse.guard, gradient)
            for sparse in self.sparse_params.values()
            for gradient in sparse.guard.touched_gradient()
        )
        with torch.no_grad():
            self.prepare(optimizer)

    def _advance(self, optimizer: Optimizer, autoupdate: bool) -> None:
        """Count the step; update masks if due, and have weights and states obey them."""
        self.step += 1
        if autoupdate:
            self.num_updates += 1
            self._update_and_enforce(optimizer)
            self._levels.advance(True)

    def _update_and_enforce(self, optimizer: Optimizer) -> None:
        """Call :meth:`update`, which may change weights and masks in any way, and mask anew."""
        self._clock.updating = True
        try:
            call_update(self, optimizer)
        finally:
            self._clock.updating = False
            for sparse in self.sparse_params.values():
                if not sparse.settle():
                    sparse.guard.select_weight()
                self._mask_states_of(sparse, optimizer)
        forget_curvature(optimizer)

    def _restore_gradients(self) -> None:  # noqa: B027 (most algorithms only mask them)
        """Undo what :meth:`_before_step` did to gradients besides masking them."""

    def _stop_preparing(self) -> None:  # noqa: B027
        """Undo what :meth:`_prepare_next_step` did."""

    def _prepare_next_step(self) -> None:  # noqa: B027 (most algorithms need no preparation)
        """Called once a step is over, and when the optimizer is applied."""

    def _settle(self, optimizer: Optimizer, *, written_everywhere: bool) -> None:
        """Mask what the optimizer wrote: right away, or once the masks are updated."""
        if not written_everywhere:
            self.project(optimizer)
        if written_everywhere is not self.masks_gradients:
            self._mask_weights_and_states(optimizer)

    def _mask_weights_and_states(self, optimizer: Optimizer) -> None:
        select_together(
            (sparse.guard, tensor)  # all of a mask while it is in the CPU's cache
            for sparse in self.sparse_params.values()
            for tensor in (sparse.param, *self._states_to_mask(sparse, optimizer))
        )

    def _states_to_mask(
        self, sparse: SparseParameter, optimizer: Optimizer
    ) -> Iterable[Tensor | Codes]:
        return states_like(optimizer, sparse.param) if self.masks_states else ()

    def _mask_states_of(self, sparse: SparseParameter, optimizer: Optimizer) -> None:
        for state in self._states_to_mask(sparse, optimizer):
            sparse.guard.select(state)

    def register_target_sparsity_hook(self, hook: Callable) -> Any:
        """Call ``hook(algorithm, name, target)`` once per distinct schedule after each step.

        ``name`` is the common prefix of the parameters' names and ``*``.

        Returns:
            A handle with ``remove()``.
        """
        return _register(self._target_hooks, hook)

    def register_computed_sparsity_hook(self, hook: Callable) -> Any:
        """Call ``hook(algorithm, name, sparsity of the mask)`` per parameter after each step.

        Returns:
            A handle with ``remove()``.
        """
        return _register(self._computed_hooks, hook)

    def _report(self) -> None:
        if self._target_hooks:
            groups: dict[int, list[str]] = {}
            for name in self.sparse_params:
                groups.setdefault(id(self._levels[name]), []).append(name)
            for names in groups.values():
                target = self._scheduled(names[0])
                for hook in list(self._target_hooks.values()):
                    hook(self, os.path.commonprefix(names) + "*", target)
        if self._computed_hooks:
            for name, sparse in self.sparse_params.items():
                for hook in list(self._computed_hooks.values()):
                    hook(self, name, sparse.sparsity)

    def _scheduled(self, name: str) -> float:
        return min(max(float(self._levels[name](self.step)), 0.0), 1.0)

    def metrics(self, flops: ModelFlops | None = None) -> dict[str, Any]:
        """What the masks are and did, as a plain dict that can be written as JSON.

        Args:
            flops: What :func:`sparse_lib.count_flops` says of the model, to have FLOPs too.

        Returns:
            ``"tensors"``: by full name, the mask's ``"sparsity"``, the last ``"target"``,
            ``"churn"`` (share of present weights that the last update brought), ``"itop"`` (share
            of positions ever present; in-time over-parameterization, Liu et al. 2021),
            ``"degree_of_constraint"`` (share of the first mask's weights never dropped),
            ``"survival"`` (share of grown weights that outlived the next update; None before
            any could), ``"dead_units"`` (outputs without an incoming weight; None for vectors)
            and ``"num_updates"``. Beside it ``"sparsity"``, ``"churn"``, ``"itop"`` and
            ``"degree_of_constraint"`` over all weights together, ``"survival"``, the sum of
            ``"dead_units"``, and ``"flops"``: of a ``"forward"`` pass with the present masks, of
            the next ``"training_step"`` (with a dense weight gradient where one is due), of the
            whole ``"run"`` so far with the masks as they were, and of these two if dense
            (``"dense_training_step"``, ``"dense_run"``).
        """
        found = summary(self.sparse_params)
        return found if flops is None else found | {"flops": self._flops(flops)}

    def _flops(self, flops: ModelFlops) -> dict[str, Any]:
        params = self.sparse_params
        levels = {n: s.sparsity for n, s in params.items() if n in flops.weight_names}
        work = {name: sparse.count_work() for name, sparse in params.items()}
        return {
            "forward": flops.forward(levels),
            "training_step": training_flops(flops, 1, self._next_work()),
            "dense_training_step": flops.training_step(),
            "run": training_flops(flops, self.step, work),
            "dense_run": self.step * flops.training_step(),
        }

    def _next_work(self) -> dict[str, Work]:
        """By full name, the work of the step about to be taken."""
        dense = self.needs_dense_gradient
        return {name: sparse.work_of_a_step(dense) for name, sparse in self.sparse_params.items()}

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
        """Restore :meth:`state_dict`; the masks come with the model's own state dict.

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
        warn_of_seed(state_dict, self._given_seed)
        self._forgotten.has_state = True
        self.step = int(state_dict["step"])
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
        self._prepare_next_step()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(step={self.step}, num_sparse_params={self.num_sparse_params})"
        )


def call_update(algorithm: SparsityAlgorithm, optimizer: Optimizer) -> None:
    """Call ``algorithm.update``, with the optimizer if its signature takes an argument."""
    if inspect.signature(algorithm.update).parameters:
        algorithm.update(optimizer)
    else:
        algorithm.update()


def _register(hooks: OrderedDict[int, Callable], hook: Callable) -> RemovableHandle:
    if not callable(hook):
        raise TypeError(f"a hook must be callable, not {hook!r}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
