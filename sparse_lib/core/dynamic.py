"""Algorithms whose masks change on a schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.checks import check_bool, check_choice, check_finite
from sparse_lib.core import distributed
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.codes import Codes
from sparse_lib.core.optimizers import parameters, rising, states_like
from sparse_lib.core.parameter import FirstMask, SparseParameter, some, warn
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true
from sparse_lib.schedules import FreqSchedule, Level, Updates, make_update_schedule

GROWN_INITS = ("zeros", "normal", "uniform", "gradient", "gradient_sign")


class DynamicSparsityAlgorithm(SparsityAlgorithm):
    """Base of algorithms that replace masks on update steps.

    Subclasses define ``update_mask(p, mask, sparsity)``. Between update steps nothing is computed.
    A parameter that no gradient reached before an update step keeps its mask.

    Args:
        update: Which steps are update steps: None (every one), an int frequency,
            ``{"freq", "start", "stop"}`` (stop is exclusive), ``{"steps": [...]}``, a callable or
            an ``UpdateSchedule``.
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
    """

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "random",
        *,
        grown_init: str = "zeros",
        grown_init_scale: float = 1.0,
        skip_update_on_mask_steps: bool = False,
        reset_momentum: bool = False,
        **kwargs: Any,
    ) -> None:
        self.update_schedule = make_update_schedule(update)
        self.grown_init = check_choice(grown_init, "grown_init", GROWN_INITS)
        self.grown_init_scale = check_finite(grown_init_scale, "grown_init_scale")
        self.skip_update_on_mask_steps = check_bool(
            skip_update_on_mask_steps, "skip_update_on_mask_steps"
        )
        always = make_update_schedule(1).described() == self.update_schedule.described()
        if skip_update_on_mask_steps and always:
            warn(
                "with skip_update_on_mask_steps and masks that are updated at every step no weight "
                "is trained; give an update frequency above 1, such as update=100"
            )
        due = self.update_schedule
        if isinstance(due, FreqSchedule) and due.stop and due.stop <= (due.start or due.freq):
            warn(
                f"no mask is ever updated: the first update is due after step "
                f"{due.start or due.freq}, and updates stop at {due.stop}"
            )
        self.reset_momentum = check_bool(reset_momentum, "reset_momentum")
        self._first_spreads: dict[str, float] = {}
        self._updating = False
        self._told_of_missed = self._told_of_shrinking = False
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
        return bool(self.update_schedule.is_update_step(step))

    def _asked(self) -> dict[str, str | None]:
        return super()._asked() | {"update": self.update_schedule.described()}

    @property
    def needs_dense_gradient(self) -> bool:
        return super().needs_dense_gradient or self.keeps_dense_gradient

    @property
    def keeps_dense_gradient(self) -> bool:
        """True if masks will be updated with dense gradients on the step about to be taken."""
        return self.keeps_any_gradient and (
            not self.autoupdate or self.is_update_step(self.step + 1)
        )

    @property
    def keeps_any_gradient(self) -> bool:
        """True if masks are ever updated with dense gradients."""
        return self.uses_dense_gradient or self.grown_init.startswith("gradient")

    @property
    def rests_weights(self) -> bool:
        """See ``skip_update_on_mask_steps``."""
        due = self.autoupdate and self.is_update_step(self.step + 1)
        return due and self.skip_update_on_mask_steps

    def dense_gradient(self, p: Tensor, *, scaled: bool = True) -> Tensor:
        """Gradient of a parameter before masking: summed over micro-batches, averaged over ranks.

        It has the size of ``p.grad`` in the optimizer's step: a loss scale is taken out, and it is
        clipped as far as that is. Where ``p.grad`` is None by now, as after ``zero_grad``, or if
        not ``scaled``, it has the size that the backward pass gave it; that is faster and enough
        where the order alone decides.

        Raises:
            RuntimeError: If it is not known: it is while masks are updated, and only if
                `needs_dense_gradient` was true at the backward pass.
            ValueError: If ``p`` is no sparse parameter of the algorithm.
        """
        sparse = self.sparse_param(p)
        kept = self.dense_gradients.kept.get(sparse.name)
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
        return self.dense_gradients.as_optimized(sparse, kept) if scaled else kept

    @torch.no_grad()
    def update(self, optimizer: Optimizer | None = None) -> None:
        """Update every mask now, whatever the update schedule says."""
        self.num_updates += 1
        self.share_gradients()
        targets = self.targets_at(self.step)
        self._tell_of_missed(targets)
        active = {
            name: sparse
            for name, sparse in self.sparse_params.items()
            if name not in self.without_gradient
        }
        self._updating = True
        try:
            for name, mask in self.new_masks(active, targets):
                sparse = self.sparse_params[name]
                self._set_mask(sparse, mask, targets[name], optimizer or self.driver.optimizer)
                for state in self.driver.states(self, sparse):
                    sparse.guard.select(state)
        finally:
            self._updating = False
        self.driver.forget_curvature()
        masks = {n: s.mask for n, s in self.sparse_params.items()}
        distributed.check_equal({n: m for n, m in masks.items() if not shards.is_sharded(m)})
        if not self.autoupdate:  # else the end of the step does
            self.advance_schedules(True)

    def _tell_of_missed(self, targets: Mapping[str, float]) -> None:
        """Warn, once, where a mask without a gradient keeps another sparsity than its target."""
        missed = [
            name
            for name in self.sparse_params
            if name in self.without_gradient and self.sparse_params[name].target != targets[name]
        ]
        if missed and not self._told_of_missed:
            self._told_of_missed = True
            sparse = self.sparse_params[missed[0]]
            warn(
                f"no gradient reached {some(missed)} in step {self.step} (unused or frozen), so "
                f"its mask keeps a sparsity of {sparse.sparsity:g}, though "
                f"{targets[missed[0]]:g} is due; it changes at an update with a gradient only"
            )

    def _tell_of_shrinking(self, sparse: SparseParameter, before: int) -> None:
        """Warn, once, where a mask has fewer weights than before and than its target asks for."""
        if self._told_of_shrinking or not self.exact_counts or self.score_shaper is not None:
            return
        count, wanted = num_true(sparse.mask), self.rules.count(sparse.target, sparse.mask.numel())
        if count < min(before, wanted):
            self._told_of_shrinking = True
            warn(
                f"the new mask of {sparse.name!r} has {count} weights, fewer than before and than "
                f"the {wanted} of its sparsity of {sparse.target:g}; scores that are NaN are never "
                "chosen"
            )

    def share_gradients(self) -> None:
        """Average dense gradients over ranks; a collective."""
        if distributed.world_size() > 1 and self.keeps_any_gradient:
            self.dense_gradients.share()

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
            with self.making_mask_of(sparse):
                mask = self.update_mask(sparse.param, sparse.mask, targets[name])
            if given._version != version:
                raise ValueError(
                    f"{type(self).__name__}.update_mask wrote to the mask of {name!r} that it was "
                    "given; it must leave that as it is and return a new one, such as a changed "
                    "mask.clone()"
                )
            before = num_true(sparse.mask)
            yield name, mask
            self._tell_of_shrinking(sparse, before)

    def _set_mask(
        self, sparse: SparseParameter, new: Tensor, target: float, optimizer: Optimizer | None
    ) -> None:
        sparse.target = target
        resets = self.reset_momentum and optimizer is not None
        if self.grown_init == "zeros" and not resets:
            sparse.mask = new
            return
        old = sparse.mask.clone()
        sparse.mask = new
        grown = sparse.mask & ~old
        if self.grown_init != "zeros":
            self._start_grown(sparse, grown, optimizer)
        if self.reset_momentum and optimizer is not None:
            for state in states_like(optimizer, sparse.param, with_dense=True):
                if isinstance(state, Codes):
                    state.clear(shards.local(grown))
                else:
                    shards.local(state).masked_fill_(shards.local(grown), 0)

    def _start_grown(
        self, sparse: SparseParameter, grown: Tensor, optimizer: Optimizer | None
    ) -> None:
        weight = sparse.param
        if self.grown_init.startswith("gradient"):
            gradient = self.dense_gradient(weight)
            start = gradient.sgn() if self.grown_init == "gradient_sign" else gradient
            start = start if optimizer is not None and id(weight) in rising(optimizer) else -start
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
        start, grown = shards.local(start) * self.grown_init_scale, shards.local(grown)
        mine = shards.local(weight.detach())
        kept = shards.local(sparse.mask) & ~grown
        for state in states_like(optimizer, weight) if optimizer is not None else ():
            # An optimizer's own copy of the weight, as of higher precision, would undo the start.
            if isinstance(state, Tensor) and bool(mine[kept].any()):
                theirs = shards.local(state)
                if torch.equal(theirs[kept].to(mine), mine[kept]):
                    theirs.copy_(torch.where(grown, start.to(theirs), theirs))
        mine.copy_(torch.where(grown, start.to(mine), mine))

    def run_update(self, optimizer: Optimizer) -> None:
        """As `SparsityAlgorithm.run_update`; `update` counts itself, and enforces."""
        mine = [sparse.param.grad is not None for sparse in self.sparse_params.values()]
        has_gradients = any(p.grad is not None for p in parameters(optimizer))
        no_pass = self.dense_gradients.no_pass or not has_gradients
        if self.keeps_any_gradient and (any(mine) or no_pass) and not self.dense_gradients.kept:
            reason = (
                "no backward pass came since the step before"
                if no_pass
                else "the backward pass before it was not known to lead to an update"
            )
            warn(
                f"masks are due at step {self.step}, but {reason}, so there is no dense gradient "
                f"to grow by: {type(self).__name__} leaves them as they are; call optimizer.step() "
                "once for each backward pass, and set step or autoupdate before it"
            )
        if type(self).update is DynamicSparsityAlgorithm.update:
            self.update(optimizer)
        else:
            self.call_update(optimizer)

    def initial_targets(self) -> dict[str, float]:
        if self.rules.starts_dense and not self.is_update_step(0):
            return dict.fromkeys(self.sparse_params, 0.0)
        return super().initial_targets()

    def put_first_masks(self, first: Sequence[FirstMask]) -> None:
        fresh = any(mask is not None for *_, mask in first)
        super().put_first_masks(first)
        if self._draws_grown:
            for sparse, *_ in first:
                if not sparse.param.is_meta:
                    spread = _spread(sparse.data, sparse.mask)
                    self._first_spreads.setdefault(sparse.name, float(spread))
        if fresh and self.is_update_step(0):
            self.advance_schedules(True)  # step 0 counts as an update for a list of values

    def state_dict(self) -> dict[str, Any]:
        """See `SparsityAlgorithm.state_dict`; also what grown weights are drawn with."""
        state = super().state_dict()
        return state | {"first_spreads": dict(self._first_spreads)} if self._draws_grown else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._draws_grown:
            self._first_spreads |= state_dict.get("first_spreads", {})


def _spread(weight: Tensor, present: Tensor) -> Tensor:
    """Root of the mean square of the weights that are present, a scalar; 0 without any."""
    old = shards.whole(weight.detach())[shards.whole(present)].abs().float()
    return old.pow(2).mean().sqrt() if old.numel() else old.new_zeros(())
