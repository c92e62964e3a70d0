"""Algorithms whose masks change on a schedule."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.checks import check_bool, check_finite
from sparse_lib.core import distributed
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.codes import Codes
from sparse_lib.core.dense_gradients import DenseGradients
from sparse_lib.core.optimizers import forget_curvature, gradient_scale, states_like
from sparse_lib.core.parameter import SparseParameter, is_mask, warn
from sparse_lib.masks import shards
from sparse_lib.schedules.updates import FreqSchedule, make_update_schedule

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
            :attr:`needs_dense_gradient` was true at the backward pass.

        Raises:
            RuntimeError: If it is not known.
            ValueError: If ``p`` is no sparse parameter of the algorithm.
        """
        return self._gradients.as_optimized(self._by_param(p), self._kept_gradient(p))

    def _kept_gradient(self, p: Tensor) -> Tensor:
        """See :meth:`dense_gradient`, in the size that the backward pass gave it."""
        sparse = self._by_param(p)
        kept = self._gradients.kept.get(sparse.name)
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
        driven = self._optimizer
        try:
            for name, mask in self.new_masks(active, targets):
                self._check_new_mask("new_masks", self.sparse_params[name], mask)
                self._set_mask(name, mask, targets[name], optimizer or driven)
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
            given = shards.local(sparse.mask)
            version = given._version
            with self._making(sparse):
                mask = self.update_mask(sparse.param, sparse.mask, targets[name])
            self._check_new_mask("update_mask", sparse, mask)
            if given._version != version:
                raise ValueError(
                    f"{type(self).__name__}.update_mask wrote to the mask of {name!r} that it was "
                    "given; it must leave that as it is and return a new one, such as a changed "
                    "mask.clone()"
                )
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
                if isinstance(state, Codes):
                    state.clear(shards.local(grown))
                else:
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

    # ------------------------------------------------------------------------------ every step

    def _reset(self) -> None:
        self._without_gradient: set[str] = set()
        self._updating = False
        super()._reset()

    def _unplug(self) -> None:
        self._gradients = DenseGradients(self.sparse_params)
        self._set_aside: list[tuple[Tensor, Tensor]] = []
        self._repeats = False
        super()._unplug()

    def __getstate__(self) -> dict[str, Any]:
        transient = {"_gradients", "_set_aside"}
        return {key: v for key, v in super().__getstate__().items() if key not in transient}

    def _before_step(self, optimizer: Optimizer) -> None:
        self._repeats = self._updates_with_dense_gradient and self._gradients.no_pass_came()
        if self._updates_with_dense_gradient:
            self._gradients.take_given()
        self._gradients.forget_measured()
        if self.uses_dense_gradient and not self.masks_gradients:
            self._gradients.measure(optimizer)
        super()._before_step(optimizer)
        due = self.autoupdate and self.is_update_step(self.step + 1)
        if due and self.skip_update_on_mask_steps:
            self._hide_gradients(optimizer)

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
            if sparse.param.grad is None or (lacking and name not in self._gradients.kept)
        }
        if self.needs_dense_gradient:
            for name in (
                self.sparse_params if super().needs_dense_gradient else self._gradients.kept
            ):
                self.sparse_params[name].count_dense_gradient()
        self.step += 1
        due = autoupdate and self.is_update_step(self.step)
        if due:
            if lacking and self._repeats and not self._gradients.kept:
                warn(
                    f"masks are due at step {self.step}, but no backward pass came since the step "
                    f"before, so there is no dense gradient to grow by: {type(self).__name__} "
                    "leaves them as they are; call optimizer.step() once for each backward pass"
                )
            self._update_and_enforce(optimizer)
        if autoupdate:
            self._advance_schedules(due)
        if self._updates_with_dense_gradient:
            self._gradients.remember()

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
            self._gradients.kept.clear()
        if self._connection is not None and self._updates_with_dense_gradient:
            self._gradients.capture()

    def _stop_preparing(self) -> None:
        self._gradients.stop()

    def _share_dense_gradients(self) -> None:
        if distributed.world_size() > 1 and self._reads_dense_gradient:
            self._gradients.share()

    @property
    def _reads_dense_gradient(self) -> bool:
        return self.uses_dense_gradient or self.grown_init.startswith("gradient")


def _spread(weight: Tensor, present: Tensor) -> Tensor:
    """Root of the mean square of the weights that are present, a scalar; 0 without any."""
    group = shards.group_of(weight)
    if group is None:
        old = shards.local(weight)[shards.local(present)].float()
        return old.pow(2).mean().sqrt() if old.numel() else old.new_zeros(())
    old = shards.local(weight.detach())[shards.local(present)].double()
    count = shards.total(old.numel(), group)
    return (shards.total(old.pow(2).sum(), group) / max(1, count)).sqrt().float()
