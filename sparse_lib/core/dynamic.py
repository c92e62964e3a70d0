"""Algorithms whose masks change on a schedule."""

from __future__ import annotations

import inspect
import math
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.checks import check_bool, check_finite
from sparse_lib.core import distributed
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.candidates import Candidates
from sparse_lib.core.optimizers import forget_curvature, gradient_scale, states_like
from sparse_lib.core.parameter import SparseParameter, is_mask, warn
from sparse_lib.flops.model import ModelFlops
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_nonzero, num_true
from sparse_lib.masks.makers import (
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
    visible_magnitude,
)
from sparse_lib.rules import rules_of
from sparse_lib.schedules.updates import FreqSchedule, make_update_schedule
from sparse_lib.schedules.values import Lambda, make_hyperparameter_schedule

#: From so many weights on, a tensor's dense gradient is not kept whole for a mask update.
_LARGE = 2**20

GROWN_INITS = ("zeros", "normal", "uniform", "gradient", "gradient_sign")


class DynamicSparsityAlgorithm(SparsityAlgorithm):
    """Base of algorithms that replace masks on update steps.

    Subclasses define ``update_mask(p, mask, sparsity)``. Between update steps nothing is computed.
    A parameter that no gradient reached before an update step keeps its mask.

    Args:
        sparsity: See :class:`SparsityAlgorithm`.
        update: Which steps are update steps: None (every one), an int frequency,
            ``{"freq", "start", "stop"}`` (stop is exclusive), ``{"steps": [...]}``, a callable or
            an ``UpdateSchedule``.
        init_method: See :class:`SparsityAlgorithm`.
        grown_init: Where grown weights start: ``"zeros"`` (RigL, Evci et al. 2020), ``"normal"``
            or ``"uniform"`` (drawn with the root mean square that the tensor's weights had when its
            first mask was made; SET, Mocanu et al. 2018, re-draws), ``"gradient"`` or
            ``"gradient_sign"`` (minus the dense gradient or its sign, a step downhill; the RigL
            authors' code has the gradient itself, divided by a number).
        grown_init_scale: Factor of ``grown_init``.
        skip_update_on_mask_steps: Leave the weights alone on mask-update steps, as the RigL paper
            (algorithm 1) and JaxPruner do.
        reset_momentum: Also zero the ``requires_dense`` optimizer states of grown weights (all
            other states start at zero anyway), as JaxPruner does.
        **kwargs: See :class:`SparsityAlgorithm`.
    """

    uses_dense_gradient: ClassVar[bool] = False
    """True if ``update_mask`` reads :meth:`dense_gradient`."""

    def __init__(
        self,
        sparsity: Any = None,
        update: Any = None,
        init_method: str | Callable = "random",
        *,
        grown_init: str = "zeros",
        grown_init_scale: float = 1.0,
        skip_update_on_mask_steps: bool = False,
        reset_momentum: bool = False,
        **kwargs: Any,
    ) -> None:
        if grown_init not in GROWN_INITS:
            raise ValueError(
                f"grown_init must be one of {', '.join(GROWN_INITS)}, not {grown_init!r}"
            )
        self.update_schedule = make_update_schedule(update)
        self.grown_init = grown_init
        self.grown_init_scale = check_finite(grown_init_scale, "grown_init_scale")
        self.skip_update_on_mask_steps = check_bool(
            skip_update_on_mask_steps, "skip_update_on_mask_steps"
        )
        if skip_update_on_mask_steps and self._updates_always():
            warn(
                "with skip_update_on_mask_steps and masks that are updated at every step no weight "
                "is trained; give an update frequency above 1, such as update=100"
            )
        self.reset_momentum = check_bool(reset_momentum, "reset_momentum")
        self._first_spreads: dict[str, float] = {}
        super().__init__(sparsity, init_method, **kwargs)

    @abstractmethod
    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The new mask of one parameter.

        Args:
            p: The parameter, any shape, after the optimizer's update, zero where masked.
            mask: Its bool mask of the same shape, not to be changed.
            sparsity: Target fraction of zeros at this step, in [0, 1].

        Returns:
            A bool mask of the same shape.
        """

    @property
    def _draws_grown(self) -> bool:
        return self.grown_init in ("normal", "uniform")

    def is_update_step(self, step: int) -> bool:
        """Whether masks are updated after optimizer step ``step`` (1 is the first)."""
        return bool(self.update_schedule.is_update_step(step))

    def _asked(self) -> dict[str, str | None]:
        return super()._asked() | {"update": self.update_schedule.described()}

    def _updates_always(self) -> bool:
        schedule = self.update_schedule
        if not isinstance(schedule, FreqSchedule):
            return False
        return (schedule.freq, schedule.stop) == (1, None) and schedule.start <= 1

    def _would_update(self, step: int) -> bool:
        return self.is_update_step(step)

    @property
    def needs_dense_gradient(self) -> bool:
        """True if the step about to be taken needs dense weight gradients."""
        return super().needs_dense_gradient or self._updates_with_dense_gradient

    @property
    def _updates_with_dense_gradient(self) -> bool:
        """True if masks will be updated with dense gradients on the step about to be taken."""
        if not self._reads_dense_gradient:
            return False
        return not self.autoupdate or self.is_update_step(self.step + 1)

    def dense_gradient(self, p: Tensor) -> Tensor:
        """Gradient of a parameter before masking: summed over micro-batches, averaged over ranks.

        It has the size of ``p.grad`` in the optimizer's step: a loss scale is taken out, and it is
        clipped as far as that is. Where ``p.grad`` is None by now, as after ``zero_grad``, it has
        the size that the backward pass gave it.

        Args:
            p: A sparse parameter.

        Returns:
            A tensor of its shape. It is known only while masks are updated, and only if
            :attr:`needs_dense_gradient` was true at the backward pass. Of a sharded or large
            parameter that :meth:`most_grown` says enough about it is NaN where no weight is
            present or can grow.

        Raises:
            RuntimeError: If it is not known.
            ValueError: If ``p`` is no sparse parameter of the algorithm.
        """
        return self._as_optimized(self._by_param(p), self._kept_gradient(p))

    def _kept_gradient(self, p: Tensor) -> Tensor:
        """:meth:`dense_gradient` in the size that the backward pass gave it."""
        sparse = self._by_param(p)
        kept = self._dense.get(sparse.name)
        if isinstance(kept, Candidates):
            return kept.expanded()
        if kept is None and not self.uses_dense_gradient:
            raise RuntimeError(
                f"no dense gradient of {sparse.name!r} was kept; set uses_dense_gradient = True in "
                f"the class {type(self).__name__}"
            )
        if kept is None:
            raise RuntimeError(
                f"no dense gradient of {sparse.name!r} was kept for this step; to update masks by "
                "hand, set autoupdate to False before the backward pass"
            )
        return kept

    def most_grown(self, sparse: SparseParameter) -> int | None:
        """How many absent weights the mask update after the next step may add, if that is all.

        With a number, only the gradients of present weights and of so many others, the largest in
        magnitude, are kept of a sharded or large parameter. None, the default, keeps all. A
        collective. What RigL and GraNet answer is of their own methods: for a subclass that
        overrides any, all is kept, unless it overrides this one too.

        Args:
            sparse: One of the algorithm's parameters.
        """
        return None

    # ---------------------------------------------------------------------------------- updating

    @torch.no_grad()
    def update(self, optimizer: Optimizer | None = None) -> None:
        """Update every mask now, whatever the update schedule says."""
        self.num_updates += 1
        self._share_dense_gradients()
        targets = self._levels.targets(self.step, is_update_step=True)
        active = {
            name: sparse
            for name, sparse in self.sparse_params.items()
            if name not in self._without_gradient
        }
        self._updating = True
        driven = self._optimizer() if self._optimizer is not None else None
        try:
            for name, mask in self.new_masks(active, targets):
                self._check_new_mask("new_masks", self.sparse_params[name], mask)
                self._set_mask(name, mask, targets[name], optimizer or driven)
                if isinstance(self._dense.get(name), Candidates):
                    del self._dense[name]  # they belong to the mask that was
                if driven is not None:
                    self._mask_states_of(self.sparse_params[name], driven)
        finally:
            self._updating = False
        if driven is not None:
            forget_curvature(driven)
        masks = {n: s.mask for n, s in self.sparse_params.items()}
        distributed.check_equal({n: m for n, m in masks.items() if not shards.is_sharded(m)})
        if not self.autoupdate:  # else the end of the step does
            self._advance_schedules(True)

    def new_masks(
        self, params: Mapping[str, SparseParameter], targets: Mapping[str, float]
    ) -> Iterable[tuple[str, Tensor]]:
        """Full names and new masks; override this to decide over all tensors together.

        Each mask is put in place before the next one is asked for, so that a whole model's are
        never held at once.
        """
        for name, sparse in params.items():
            mask = self.update_mask(sparse.param, sparse.mask, targets[name])
            self._check_new_mask("update_mask", sparse, mask)
            yield name, mask

    def _check_new_mask(self, method: str, sparse: SparseParameter, mask: Any) -> None:
        """Raise TypeError or ValueError if what a method returned is no mask of a parameter."""
        shape, returned = tuple(sparse.mask.shape), f"{type(self).__name__}.{method} returned"
        if not isinstance(mask, Tensor):
            raise TypeError(
                f"{returned} a {type(mask).__name__} for {sparse.name!r}; it must return a bool "
                f"tensor of shape {shape}"
            )
        if tuple(mask.shape) != shape:
            raise ValueError(
                f"{returned} a mask of shape {tuple(mask.shape)} for {sparse.name!r}, not {shape}"
            )
        if not is_mask(mask):
            raise ValueError(
                f"{returned} {str(mask.dtype).removeprefix('torch.')} values other than 0 and 1 "
                f"for {sparse.name!r}, as of scores; a mask is bool, such as "
                "make_mask_topk_sparsity makes of scores"
            )

    def _set_mask(self, name: str, new: Tensor, target: float, optimizer: Optimizer | None) -> None:
        sparse = self.sparse_params[name]
        sparse.target = target
        resets = self.reset_momentum and optimizer is not None
        if self.grown_init == "zeros" and not resets:
            sparse.mask = new
            return
        new = shards.fitted(new.to(sparse.mask.device), sparse.mask)
        grown = new & ~sparse.mask
        sparse.mask = new
        if self.grown_init != "zeros":
            self._start_grown(sparse, grown)
        if self.reset_momentum and optimizer is not None:
            for state in states_like(optimizer, sparse.param, with_dense=True):
                shards.local(state).masked_fill_(shards.local(grown), 0)

    def _start_grown(self, sparse: SparseParameter, grown: Tensor) -> None:
        weight = sparse.param
        if self.grown_init.startswith("gradient"):
            gradient = self.dense_gradient(weight)
            start = -(gradient.sign() if self.grown_init == "gradient_sign" else gradient)
        else:
            source = self.generator(f"{sparse.name}/grown")
            spread = self._first_spreads.get(sparse.name)
            if spread is None:  # the first mask was made without values
                spread = float(_spread(weight, sparse.mask & ~grown))
            if self.grown_init == "normal":
                draw = torch.randn(weight.shape, generator=source, device="cpu")
            else:
                draw = torch.rand(weight.shape, generator=source, device="cpu")
                draw = (draw * 2 - 1) * 3**0.5
            start = shards.rows_of(draw, weight).to(weight.device) * spread
        start = (shards.local(start) * self.grown_init_scale).to(weight.dtype)
        mine = shards.local(weight.detach())
        mine.copy_(torch.where(shards.local(grown), start, mine))

    def _as_optimized(self, sparse: SparseParameter, gradient: Tensor) -> Tensor:
        """A dense gradient, unscaled and clipped as ``.grad`` was before the optimizer saw it."""
        if sparse.name in self._factors:
            factor = self._factors[sparse.name]
        else:
            factor = self._factor(sparse.param, gradient)
        if factor is None and sparse.param.grad is not None:
            factor = self._factor_of_others()
        return gradient if factor in (None, 1.0) else gradient * factor

    def _factor(self, weight: Tensor, gradient: Tensor) -> float | None:
        """By what ``.grad`` was multiplied since the backward pass that left a dense gradient.

        None where no present weight has a gradient to tell it by.
        """
        if weight.grad is None:
            return None
        given, group = shards.local(weight.grad), shards.group_of(weight)
        seen = (given.to_dense() if given.is_sparse else given).double()
        kept = shards.local(gradient).double()
        without = (seen == 0) | ~seen.isfinite() | ~kept.isfinite()
        seen, kept = seen.masked_fill(without, 0), kept.masked_fill(without, 0)
        norm = shards.total(kept.pow(2).sum(), group)
        return float(shards.total((seen * kept).sum(), group) / norm) if norm > 0 else None

    def _factor_of_others(self) -> float | None:
        """That of the first parameter which tells; loss scales and clipped norms are of all."""
        if self._factors:
            return next((known for known in self._factors.values() if known is not None), None)
        for name, sparse in self.sparse_params.items():
            if isinstance(kept := self._dense.get(name), Tensor):
                if (factor := self._factor(sparse.param, kept)) is not None:
                    return factor
        return None

    # ------------------------------------------------------------------------------ every step

    def _reset(self) -> None:
        self._without_gradient: set[str] = set()
        self._updating = False
        super()._reset()

    def _unplug(self) -> None:
        self._dense: dict[str, Tensor | Candidates] = {}
        self._captures: list[Any] = []
        self._stepped = False
        self._set_aside: list[tuple[Tensor, Tensor]] = []
        self._repeats = False
        self._factors: dict[str, float | None] = {}  # of gradients that the algorithm has changed
        self._seen: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        super()._unplug()

    def __getstate__(self) -> dict[str, Any]:
        transient = {"_dense", "_captures", "_set_aside", "_seen"}
        return {key: v for key, v in super().__getstate__().items() if key not in transient}

    def _before_step(self, optimizer: Optimizer) -> None:
        self._repeats = self._updates_with_dense_gradient and self._no_pass_came()
        if self._updates_with_dense_gradient:
            for name, sparse in self.sparse_params.items():
                gradient = sparse.param.grad
                if name in self._dense or gradient is None or sparse.guard.gradient_is_clean:
                    continue
                if self._is_stale(name, gradient):
                    continue
                gradient = gradient.detach()  # set by hand
                if not self._is_set(gradient, sparse):
                    continue
                self._dense[name] = gradient.to_dense() if gradient.is_sparse else gradient.clone()
        self._measure_factors(optimizer)
        super()._before_step(optimizer)
        due = self.autoupdate and self.is_update_step(self.step + 1)
        if due and self.skip_update_on_mask_steps:
            self._hide_gradients(optimizer)

    def _measure_factors(self, optimizer: Optimizer) -> None:
        """Compare gradients that the algorithm is about to change with those it kept."""
        self._factors.clear()
        if self.masks_gradients or not self.uses_dense_gradient:
            return
        scale = gradient_scale(optimizer)
        for name, sparse in self.sparse_params.items():
            if isinstance(kept := self._dense.get(name), Tensor) and sparse.param.grad is not None:
                factor = self._factor(sparse.param, kept)
                if factor is not None and scale is not None:
                    factor /= float(scale)
                self._factors[name] = factor

    def _is_stale(self, name: str, gradient: Tensor) -> bool:
        """Whether a gradient is the one that the step before saw, unchanged."""
        seen, version = self._seen.get(name, (None, -1))
        return seen is not None and seen() is gradient and version == gradient._version

    def _is_set(self, gradient: Tensor, sparse: SparseParameter) -> bool:
        """False for what ``zero_grad(set_to_none=False)`` leaves where no backward pass came."""
        given = shards.local(gradient)
        given = given._values() if given.is_sparse else given
        return bool(shards.total(given.count_nonzero(), shards.group_of(sparse.param)))

    def _hide_gradients(self, optimizer: Optimizer) -> None:
        # Torch optimizers pass over parameters without a gradient, states and decay included.
        # One that takes part in loss scaling would have unscaled what it does not see now.
        scale = gradient_scale(optimizer)
        self._set_aside.clear()  # of an earlier evaluation of a closure
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    if scale is not None:
                        param.grad.div_(scale)
                    self._set_aside.append((param, param.grad))
                    param.grad = None

    def _restore_gradients(self) -> None:
        for param, gradient in self._set_aside:
            param.grad = gradient
        self._set_aside.clear()

    def _advance(self, optimizer: Optimizer, autoupdate: bool) -> None:
        self._restore_gradients()
        lacking = self._updates_with_dense_gradient  # such as of a parameter unfrozen just now
        self._without_gradient = {
            name
            for name, sparse in self.sparse_params.items()
            if sparse.param.grad is None or (lacking and name not in self._dense)
        }
        if self.needs_dense_gradient:
            for name in self.sparse_params if super().needs_dense_gradient else self._dense:
                self.sparse_params[name].count_dense_gradient()
        self.step += 1
        self._stepped = True
        due = autoupdate and self.is_update_step(self.step)
        if due:
            if lacking and self._repeats and not self._dense:
                warn(
                    f"masks are due at step {self.step}, but no backward pass came since the step "
                    f"before, so there is no dense gradient to grow by: {type(self).__name__} "
                    "leaves them as they are; call optimizer.step() once for each backward pass"
                )
            self._update_and_enforce(optimizer)
        if autoupdate:
            self._advance_schedules(due)
        if self._updates_with_dense_gradient:
            self._remember_gradients()

    def _no_pass_came(self) -> bool:
        """Whether there are gradients, but all of them those of the step before."""
        given = {n: s.param.grad for n, s in self.sparse_params.items()}
        left = {name: gradient for name, gradient in given.items() if gradient is not None}
        return bool(left) and all(self._is_stale(*item) for item in left.items())

    def _remember_gradients(self) -> None:
        self._seen = {
            name: (weakref.ref(gradient), gradient._version)
            for name, sparse in self.sparse_params.items()
            if (gradient := sparse.param.grad) is not None
        }

    def _update_and_enforce(self, optimizer: Optimizer) -> None:
        if type(self).update is DynamicSparsityAlgorithm.update:
            self.update(optimizer)  # masks weights and states as it sets each mask
        else:
            super()._update_and_enforce(optimizer)

    def _advance_schedules(self, due: bool) -> None:
        self._levels.advance(due)

    def _initial_targets(self) -> dict[str, float]:
        if self.rules.starts_dense and not self.is_update_step(0):
            return dict.fromkeys(self.sparse_params, 0.0)
        return super()._initial_targets()

    def _put_first_masks(
        self, params: list[SparseParameter], first: list[tuple[float, Tensor | None]]
    ) -> None:
        fresh = any(not sparse.initialized for sparse in params)
        super()._put_first_masks(params, first)
        if self._draws_grown:
            for sparse in params:
                if not sparse.param.is_meta:
                    spread = _spread(sparse.data, sparse.mask)
                    self._first_spreads.setdefault(sparse.name, float(spread))
        if fresh and self.is_update_step(0):
            self._advance_schedules(True)  # step 0 counts as an update for a list of values

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`SparsityAlgorithm.state_dict`; also what grown weights are drawn with."""
        state = super().state_dict()
        return state | {"first_spreads": dict(self._first_spreads)} if self._draws_grown else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ValueError: If the state does not fit this algorithm.
        """
        given = state_dict.get("first_spreads", {}) if isinstance(state_dict, Mapping) else {}
        numbers = isinstance(given, Mapping) and all(
            isinstance(spread, (int, float)) and 0 <= spread < math.inf for spread in given.values()
        )
        if not numbers:
            raise ValueError(
                f"the state has first_spreads={given!r:.80}, which must map names to numbers"
            )
        super().load_state_dict(state_dict)
        if self._draws_grown:
            self._first_spreads |= {name: float(spread) for name, spread in given.items()}

    # --------------------------------------------------------------------------- dense gradients

    def _prepare_next_step(self) -> None:
        self._stop_preparing()
        if self.autoupdate:  # else the user may call update before the next backward pass
            self._dense.clear()
        if self._optimizer is not None and self._updates_with_dense_gradient:
            for sparse in self.sparse_params.values():
                if sparse.param.requires_grad:
                    sparse.guard.want_dense_gradient(True)
                    self._captures.append(self._capture(sparse))

    def _stop_preparing(self) -> None:
        if self._captures:
            for sparse in self.sparse_params.values():
                sparse.guard.want_dense_gradient(False)
                sparse.guard.before_masking = None
        for handle in self._captures:
            handle.remove()
        self._captures.clear()

    def _capture(self, sparse: SparseParameter) -> Any:
        # Weak: the hook lives on the parameter, which must not keep the algorithm alive.
        reference, name = weakref.ref(self), sparse.name
        if shards.is_sharded(sparse.param):
            # Autograd never sees a sharded parameter: fully_shard puts its gradient in place.
            def keep_sum(gradient: Tensor, goes_on: bool) -> None:
                algorithm = reference()
                if algorithm is not None and name in algorithm.sparse_params:
                    algorithm._keep_dense_sum(algorithm.sparse_params[name], gradient, goes_on)

            sparse.guard.before_masking = keep_sum
            return RemovableHandle(OrderedDict())

        def keep(gradient: Tensor) -> None:
            algorithm = reference()
            if algorithm is not None and name in algorithm.sparse_params:
                gradient = gradient.detach()
                gradient = gradient.to_dense() if gradient.is_sparse else gradient
                algorithm._keep_dense(algorithm.sparse_params[name], gradient)

        return sparse.param.register_hook(keep)

    @torch.no_grad()
    def _keep_dense(self, sparse: SparseParameter, gradient: Tensor) -> None:
        # Runs before the gradient is added to ``.grad``: what is there tells whether this is the
        # first micro-batch since ``zero_grad`` (a step that overflowed leaves a stale sum).
        so_far = self._dense.get(sparse.name)
        accumulated = sparse.param.grad
        goes_on = accumulated is not None and (
            sparse.guard.gradient_is_clean
            or bool((accumulated._values() if accumulated.is_sparse else accumulated).any())
        )
        if isinstance(so_far, Candidates) and goes_on:
            so_far = self._dense[sparse.name] = self._completed(sparse, so_far)
        if isinstance(so_far, Tensor) and goes_on:
            so_far.add_(gradient)
        elif distributed.world_size() == 1 and sparse.param.numel() >= _LARGE:
            self._keep_needed(sparse, gradient)
        else:  # ranks are averaged over all that is there
            self._dense[sparse.name] = gradient.clone()

    @torch.no_grad()
    def _keep_dense_sum(self, sparse: SparseParameter, gradient: Tensor, goes_on: bool) -> None:
        """Keep a sharded gradient that holds what is there already, masked, and a new one."""
        so_far = self._dense.get(sparse.name)
        if isinstance(so_far, Candidates) and goes_on:
            so_far = self._dense[sparse.name] = self._completed(sparse, so_far)
        if so_far is not None and goes_on:
            mine, mask = shards.local(so_far), shards.local(sparse.mask)
            old = mine.masked_fill(mask, 0)
            mine.copy_(shards.local(gradient)).add_(old)
            return
        self._keep_needed(sparse, gradient)

    def _completed(self, sparse: SparseParameter, kept: Candidates) -> Tensor:
        """What is known of a gradient that another one is going to be added to."""
        warn(
            f"the gradient of {sparse.name!r} is accumulated over backward passes, for the "
            "first time at a step that updates masks: absent weights count by the later ones "
            "where the first one's gradient was small; later updates are exact"
        )
        return kept.expanded(fill=0.0)

    def _keep_needed(self, sparse: SparseParameter, gradient: Tensor) -> None:
        """Keep of a gradient what the mask update can read, or all of it where that is open."""
        # A first step does not tell whether others accumulate gradients.
        simple = self.autoupdate and self._stepped and not sparse.guard.accumulates
        most = self.most_grown(sparse) if simple else None
        if most is None:
            self._dense[sparse.name] = gradient.detach().clone()
        else:
            self._dense[sparse.name] = Candidates.of(gradient, sparse.mask, most)

    def _share_dense_gradients(self) -> None:
        if distributed.world_size() == 1 or not self._reads_dense_gradient:
            return
        for name, sparse in self.sparse_params.items():
            if name not in self._dense:
                self._dense[name] = torch.zeros_like(sparse.param)
        shared = [self._dense[name] for name in self.sparse_params]
        # Those of sharded parameters are averages already.
        distributed.average_(
            kept for kept in shared if isinstance(kept, Tensor) and not shards.is_sharded(kept)
        )

    @property
    def _reads_dense_gradient(self) -> bool:
        return self.uses_dense_gradient or self.grown_init.startswith("gradient")


def _overrides(algorithm: Any, name: str) -> bool:
    """Whether an object has other methods than the class has from which it takes one of them.

    What that one says of the others holds for those of its own class and bases: a subclass, a
    class between two bases or the object itself may bring others. ``__init__`` does not count.
    """
    own = type(algorithm)
    speaker = next(cls for cls in own.__mro__ if name in vars(cls))
    return any(
        key in vars(algorithm) or getattr(own, key) is not method
        for key in dir(speaker)
        if not key.startswith("__")
        and (inspect.isfunction(method := getattr(speaker, key)) or isinstance(method, property))
    )


def _spread(weight: Tensor, present: Tensor) -> Tensor:
    """Root of the mean square of the weights that are present, a scalar; 0 without any."""
    group = shards.group_of(weight)
    if group is None:
        old = shards.local(weight)[shards.local(present)].float()
        return old.pow(2).mean().sqrt() if old.numel() else old.new_zeros(())
    old = shards.local(weight.detach())[shards.local(present)].double()
    count = shards.total(old.numel(), group)
    return (shards.total(old.pow(2).sum(), group) / max(1, count)).sqrt().float()


class DropAndGrow(DynamicSparsityAlgorithm):
    """Base of algorithms that drop the smallest weights and grow others: SET, RigL and their kin.

    Subclasses define :meth:`grow_score`. After the weight update of an update step ``t``, in a
    tensor of ``n`` weights of which ``m`` are present:

    1. The target is ``k = num_nonzero(sparsity(t), n)``.
    2. Drop: of the present weights the ``min(num_nonzero(drop_fraction(t), m), k)`` largest in
       magnitude stay, so the target is met even where the sparsity rises by more than
       ``drop_fraction`` frees (unless the rules let it lag). A weight that is NaN counts as
       infinite, so that it stays and shows.
    3. Grow: the absent positions with the highest scores are added until there are ``k``. Those
       dropped just now compete too; one that wins keeps its value and optimizer states. All
       others start at 0 (or as ``grown_init`` says), with states of 0. NaN scores never grow, so
       there may be fewer than ``k``.

    Of equal values the lower index (row-major) wins. With a ``score_shaper`` all counts are per
    pool.

    Args:
        sparsity: See :class:`SparsityAlgorithm`.
        update: See :class:`DynamicSparsityAlgorithm`.
        init_method: See :class:`SparsityAlgorithm`.
        drop_fraction: Fraction of the present weights dropped in an update, in [0, 1]; a number
            or a schedule, evaluated at every update step.
        **kwargs: See :class:`DynamicSparsityAlgorithm`.

    Raises:
        ValueError: In a step, if a function given as ``drop_fraction`` gives more than 1.
    """

    def __init__(
        self,
        sparsity: Any = None,
        update: Any = None,
        init_method: str | Callable = "random",
        *,
        drop_fraction: Any = 0.3,
        **kwargs: Any,
    ) -> None:
        self.drop_schedule = make_hyperparameter_schedule(
            drop_fraction, key="drop_fraction", rules=rules_of(kwargs.get("compat"))
        )
        super().__init__(sparsity, update, init_method, **kwargs)

    @abstractmethod
    def grow_score(self, p: Tensor) -> Tensor:
        """Scores of the shape of ``p``; absent weights with the highest grow, NaN never."""

    def drop_score(self, p: Tensor) -> Tensor:
        """Scores of the shape of ``p``, at least 0; present weights with the lowest are dropped."""
        return visible_magnitude(p)

    def _unplug(self) -> None:
        self._coming: tuple[int, float, dict[str, float]] = (-1, 0.0, {})
        super()._unplug()

    @property
    def drop_fraction(self) -> float:
        """Drop fraction at the current step, in [0, 1]."""
        return self._drop_fraction_at(self.step, self._updating)

    def _drop_fraction_at(self, step: int, is_update_step: bool) -> float:
        value = float(self.drop_schedule(step, is_update_step))
        if value > 1 and isinstance(self.drop_schedule, Lambda):
            raise ValueError(
                f"drop_fraction must be between 0 and 1, and its function gave {value!r} at step "
                f"{step}"
            )
        return min(max(value, 0.0), 1.0)

    def _score(self, method: str, p: Tensor) -> Tensor:
        """What :meth:`drop_score` or :meth:`grow_score` says of a parameter.

        Raises:
            TypeError: If it is no tensor.
            ValueError: If it has another shape than the parameter.
        """
        score = getattr(self, method)(p)
        if isinstance(score, Tensor) and score.shape == p.shape:
            return score
        name = next((name for name, s in self.sparse_params.items() if s.param is p), "a parameter")
        must = f"{type(self).__name__}.{method} must return a tensor of shape {tuple(p.shape)} for"
        if not isinstance(score, Tensor):
            raise TypeError(f"{must} {name!r}, not a {type(score).__name__}")
        raise ValueError(f"{must} {name!r}, not one of shape {tuple(score.shape)}")

    def metrics(self, flops: ModelFlops | None = None) -> dict[str, Any]:
        """As of every algorithm, and ``"drop_fraction"`` at the current step."""
        return super().metrics(flops) | {"drop_fraction": self.drop_fraction}

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """Drop by :meth:`drop_score`, then :meth:`grow`."""
        options: dict[str, Any] = {"score_shaper": self.score_shaper, "rules": self.rules}
        magnitude = self._score("drop_score", p)
        kept, count = make_mask_drop_minimum(magnitude, mask, self.drop_fraction, **options)
        may_exceed = self.score_shaper is not None or count > num_nonzero(sparsity, p.numel())
        if self.rules.meets_target and may_exceed:
            magnitude = torch.where(kept, magnitude, -1)
            kept &= make_mask_topk_sparsity(magnitude, sparsity, score_shaper=self.score_shaper)
            count = num_true(kept)
        del magnitude
        return self.grow(p, kept, count, sparsity)

    def grow(self, p: Tensor, kept: Tensor, count: int, sparsity: float) -> Tensor:
        """Add weights to a mask until it has the sparsity: those of the best :meth:`grow_score`.

        Args:
            p: The parameter.
            kept: Bool mask, to be left as it is; ``count`` weights.
            count: See ``kept``.
            sparsity: Target fraction of zeros, in [0, 1].
        """
        options: dict[str, Any] = {"score_shaper": self.score_shaper, "rules": self.rules}
        return make_mask_grow_maximum(
            self._score("grow_score", p), kept, sparsity, count, **options
        )

    def _ranking_gradient(self, p: Tensor) -> Tensor:
        """The dense gradient, of any size where its order alone decides."""
        whole = _overrides(self, "most_grown")
        return self.dense_gradient(p) if whole else self._kept_gradient(p)

    def _most_grown(self, sparse: SparseParameter) -> int | None:
        """:meth:`most_grown` where only counts decide how many weights are added."""
        simple = self.score_shaper is None and not self.grown_init.startswith("gradient")
        if not simple or _overrides(self, "most_grown"):
            return None
        step = self.step + 1
        if self._coming[0] != step:
            fraction = self._drop_fraction_at(step, True)
            self._coming = (step, fraction, self._levels.targets(step, is_update_step=True))
        _, fraction, targets = self._coming
        wanted = self.rules.count(targets[sparse.name], sparse.param.numel())
        stay = self.rules.count(fraction, num_true(sparse.mask))
        return max(0, wanted - stay)

    def _advance_schedules(self, due: bool) -> None:
        super()._advance_schedules(due)
        self._coming = (-1, 0.0, {})
        self.drop_schedule.update(due)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`DynamicSparsityAlgorithm.state_dict`; also the state of the drop schedule."""
        return super().state_dict() | {"drop_fraction": dict(self.drop_schedule.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ValueError: If the state does not fit this algorithm.
        """
        drop = state_dict.get("drop_fraction", {}) if isinstance(state_dict, Mapping) else {}
        if not isinstance(drop, Mapping):
            raise ValueError(f"the state has drop_fraction={drop!r:.80}, which must be a mapping")
        super().load_state_dict(state_dict)
        if "drop_fraction" in state_dict:
            self.drop_schedule.load_state_dict(dict(state_dict["drop_fraction"]))
