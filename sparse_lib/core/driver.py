"""The tie between algorithms, a model and its optimizer; and the order of events in a step.

In ``optimizer.step()``: gradients are masked (they were already, in the backward pass) -> the
optimizer updates -> weights and states are masked -> ``step += 1`` -> each algorithm updates its
masks, if due, from the *updated* weights -> weights and states obey the new masks. So weights and
states are masked once in an ordinary step, and once more where a mask changes. Optimizer step n is
schedule step n; step 0 is initialisation.

With ``masks_gradients = False`` the optimizer gets dense gradients and writes to every weight;
masks are updated from what it wrote, and weights are masked last. With ``masks_states = False``
optimizer states are left alone. ``prepare`` and ``project`` of an algorithm are called right before
and right after the optimizer's own update.

With ``optimizer.step(closure)`` the gradients come during the step. What else happens before the
optimizer's update then happens after each evaluation of the closure. Each evaluation has masked
weights; where all weights are trained, what an optimizer wrote is put aside meanwhile. So
optimizers that evaluate once end with the bits of the plain loop.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.core import mistakes, optimizers, parameter
from sparse_lib.core.codes import Codes
from sparse_lib.core.guard import MaskGuard, watch_readers
from sparse_lib.core.parameter import SparseParameter, some, warn
from sparse_lib.core.selection import select_together
from sparse_lib.layers import layouts
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm
    from sparse_lib.core.applied import Applied

Found = list[tuple[str, nn.Module, str]]
"""Full names of parameters, the modules that own them, and their names there."""


class Driver:
    """Applies algorithms to models, and acts for them in the steps of one optimizer.

    The optimizer keeps the algorithms alive by its hooks; this keeps neither. ``owner`` is what a
    user applies: an algorithm, or a group of several.
    """

    def __init__(self, owner: Applied) -> None:
        self._owner = weakref.ref(owner)
        self._models: list[weakref.ref[nn.Module]] = []
        self._places: list[parameter.Place] = []  # of masked modules and those around them
        self._told_of_missed = self.rests = False
        self._unplug()

    def _unplug(self) -> None:
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handles: list[RemovableHandle] = []
        self._not_held: set[int] = set()  # ids of parameters that the optimizer does not have
        self._set_aside: list[tuple[Tensor, Tensor]] = []
        self._looks_for_state = self._optimizer_was_loaded = False

    @property
    def owner(self) -> Applied | None:
        """The algorithm or group that was applied; None once it is gone."""
        return self._owner()

    @property
    def members(self) -> Sequence[SparsityAlgorithm]:
        """The algorithms."""
        owner = self.owner
        return () if owner is None else owner.algorithms

    @property
    def params(self) -> dict[str, SparseParameter]:
        """All sparse parameters by full name."""
        return {n: s for member in self.members for n, s in member.sparse_params.items()}

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer whose steps drive the algorithms; None without one, or once it is gone."""
        return None if self._optimizer is None else self._optimizer()

    def drives(self, param: Tensor) -> bool:
        """True if an optimizer's steps enforce the mask of this parameter."""
        return self.optimizer is not None and id(param) not in self._not_held

    def apply_to_model(self, model: nn.Module) -> None:
        """Give a model's parameters to the algorithms, and make their first masks."""
        gone = self._replaced()
        masks = {id(sparse.param): sparse.mask for sparse in gone if sparse.fits}
        for module in {id(sparse.module): sparse.module for sparse in gone}.values():
            self.detach(module)
        for sparse in gone:
            if not sparse.fits:
                parameter.strip(sparse)
        parameter.take_over(model, masks)
        owner = self.owner
        assert owner is not None  # who is applied is there
        self._sparsify(model, owner.divide_model(model))
        watch_readers(model)
        root = parameter.unwrap(model)
        if not any(known() is root for known in self._models):
            self._models.append(weakref.ref(root))
        self._look_at_places()
        self.find_not_held()

    def _sparsify(self, model: nn.Module, parts: list[tuple[SparsityAlgorithm, Found]]) -> None:
        """Register, mask and attach parameters; if any fails, nothing is changed."""
        adopted: list[tuple[SparsityAlgorithm, list[SparseParameter]]] = []
        known, told = layouts(model), []
        try:
            for algorithm, found in parts:
                new = parameter.adopt(algorithm.sparse_params, algorithm.clock, found, known)
                for name, sparse in list(new.items()):
                    if (reason := algorithm.why_dense(sparse)) is not None:
                        told.append(reason)
                        del new[name]
                algorithm.sparse_params |= new
                algorithm.sparsity.params = algorithm.sparse_params
                adopted.append((algorithm, list(new.values())))
            first = [algorithm.first_masks(new) for algorithm, new in adopted]
        except BaseException:
            for algorithm, params in adopted:
                for sparse in params:
                    del algorithm.sparse_params[sparse.name]
            raise
        for (algorithm, params), made in zip(adopted, first, strict=True):
            for sparse in params:
                parameter.attach(sparse)
            self.claim(algorithm)
            mistakes.warn_of_zeros(made)
            mistakes.warn_of_frozen(model, made)
            algorithm.put_first_masks(made)
            mistakes.warn_of_filled_zeros(params)
            mistakes.warn_of_missed_sparsity(algorithm, made)
        for reason in told:
            warn(reason)

    def claim(self, algorithm: SparsityAlgorithm) -> None:
        """Decide about the masks of an algorithm from now on."""
        algorithm.driver = self
        for sparse in algorithm.sparse_params.values():
            sparse.guard.claim(type(algorithm).__name__, self, algorithm.masks_gradients)

    @property
    def models(self) -> list[nn.Module]:
        """The models that the algorithms were applied to and that are there still."""
        return [model for known in self._models if (model := known()) is not None]

    def _replaced(self) -> list[SparseParameter]:
        return parameter.replaced(self.params.values(), self.models)

    def check_places(self, *, anyway: bool = False) -> None:
        """Raise ValueError where a masked module or weight was replaced since; warn of adapters."""
        if anyway or any(map(parameter.has_other, self._places)):
            self._look_at_places()
            mistakes.warn_of_adapters(self.models)

    def _look_at_places(self) -> None:
        if gone := [sparse.name for sparse in self._replaced()]:
            raise ValueError(
                f"the module or weight of {some(gone)} was replaced in the model after sparsity "
                "was applied; apply the algorithm to the model again, then to the optimizer"
            )
        self._places = parameter.places_of(self.params.values(), self.models)

    def detach(self, module: nn.Module | Optimizer | None = None) -> None:
        """See `sparse_lib.SparsityAlgorithm.detach`."""
        if isinstance(module, Optimizer):
            if self.optimizer not in (None, optimizers.stepping(module)):
                raise ValueError("the algorithm was applied to another optimizer than this")
            self._let_go_of_optimizer()
            return
        inside = None if module is None else {id(param) for param in module.parameters()}
        for member in self.members:
            member.dense_gradients.stop()
            for name, sparse in list(member.sparse_params.items()):
                if inside is None or id(sparse.param) in inside:
                    sparse.guard.release()
                    del member.sparse_params[name]
        if self.params:
            self.prepare_next_step()
        else:
            self._models.clear()
            self._let_go_of_optimizer()

    def apply_to_optimizer(self, given: Any) -> None:
        """Enforce and update masks in the steps of an optimizer, or of the one it wraps."""
        optimizer = optimizers.stepping(given)
        self.check_places(anyway=True)
        if (known := self.optimizer) is not None:
            if known is optimizer:
                self._tell_not_held()
                return
            raise ValueError(
                "this algorithm already drives another optimizer; let go of it first with "
                "detach(optimizer)"
            )
        if not hasattr(optimizer, "register_step_post_hook"):
            raise TypeError(f"apply takes a torch optimizer, not {type(optimizer).__name__}")
        params = self.params
        if not params:
            raise ValueError(
                "the algorithm was applied to a model of which it took no parameter, so its "
                "optimizer has nothing to mask"
                if self._models
                else "apply the algorithm to the model before its optimizer"
            )
        self._check_ties(params)
        for name, sparse in params.items():
            parameter.check_driven(name, sparse)
        held = optimizers.params_of(optimizer)
        if not any(id(sparse.param) in held for sparse in params.values()):
            is_frozen = not any(sparse.param.requires_grad for sparse in params.values())
            raise ValueError(
                "the optimizer holds none of the sparse parameters; "
                + (
                    "they are frozen, and their masks stay without it"
                    if is_frozen
                    else "if the model was copied since, call detach() on the algorithm and apply "
                    "it to the copy first"
                )
            )
        self.connect(optimizer, optimizers.innermost(given))
        for sparse in params.values():
            sparse.guard.ensure()
            sparse.prune()
        for member in self.members:
            self._mask(member)
        for sparse in params.values():
            sparse.guard.note_masked()
        self.prepare_next_step()
        self._tell_not_held()

    def _tell_not_held(self) -> None:
        if lacking := self.find_not_held():
            warn(
                f"the optimizer does not hold {some(lacking)}, which the algorithm sparsifies; "
                "give it all sparse parameters, or each optimizer an algorithm of its own"
            )

    def connect(self, optimizer: Optimizer, outer: Any = None) -> None:
        """Take part in an optimizer's steps, which ``outer`` may call and write weights after."""
        owner, mine = self.owner, weakref.ref(self)
        assert owner is not None

        def loaded(_: Optimizer) -> None:
            if (driver := mine()) is not None:
                driver._looks_for_state = driver._optimizer_was_loaded = True

        before, after, enforce = (
            torch.compiler.disable(partial(f, owner)) for f in (_open_step, _after_step, _enforce)
        )
        try:
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))
            self._handles.append(optimizer.register_load_state_dict_post_hook(loaded))
            if outer is not None and outer is not optimizer:
                self._handles.append(outer.register_step_post_hook(enforce))
        except AttributeError as error:
            self._let_go_of_optimizer()
            name = type(optimizer).__name__
            raise TypeError(f"apply takes a whole torch optimizer; {name}: {error}") from None
        self._optimizer = weakref.ref(optimizer)
        self._looks_for_state = True

    def _let_go_of_optimizer(self) -> None:
        for member in self.members:
            member.dense_gradients.stop()
            member.dense_gradients.kept.clear()
        for handle in self._handles:
            handle.remove()
        self._unplug()

    def find_not_held(self) -> list[str]:
        """Names of those trainable sparse parameters that the optimizer does not have."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        held = optimizers.params_of(optimizer)
        lacking = {
            name: id(sparse.param)
            for name, sparse in self.params.items()
            if sparse.param.requires_grad and id(sparse.param) not in held
        }
        self._not_held = set(lacking.values())
        return list(lacking)

    def _check_ties(self, params: dict[str, SparseParameter]) -> None:
        """Raise RuntimeError where two names that have masks have become one parameter."""
        names: dict[int, str] = {}
        for name, sparse in params.items():
            param = sparse.module._parameters.get(sparse.param_name)
            first = name if param is None else names.setdefault(id(param), name)
            if first != name:
                raise RuntimeError(
                    f"{name!r} was tied to {first!r} after sparsity was applied, and one weight "
                    "cannot obey two masks; tie weights first, then apply"
                )

    def check_step(self, optimizer: Optimizer) -> None:
        """Check that the model is unchanged, and hook parameters that are new."""
        if self._not_held:
            self.find_not_held()
        if self._looks_for_state:
            self._looks_for_state = False
            for member in self.members:
                mistakes.warn_of_lost_state(member, optimizer, self._optimizer_was_loaded)
        params, is_replaced = self.params, False
        for name, sparse in params.items():
            if sparse.module._parameters.get(sparse.param_name) is None:
                raise RuntimeError(
                    f"{name!r} was taken out of its module after sparsity was applied; change the "
                    "model first, then apply"
                )
            is_replaced = is_replaced or sparse.guard.is_replaced
            sparse.guard.ensure()
        self.check_places(anyway=is_replaced)
        if is_replaced:
            self._tell_not_held()
        for sparse in params.values():
            sparse.guard.settle_written()
        self._check_ties(params)

    def missed_step(self, count: int) -> None:
        """Note the ``count``-th step of others since the optimizer's; 20 may be inner ones."""
        if not self._told_of_missed and (self.optimizer is None or count > 20):
            told = (mistakes.warn_of_missed_update(member, count) for member in self.members)
            self._told_of_missed = any(told)

    def was_written(self, guard: MaskGuard, weight: Tensor, *, loaded: bool = False) -> None:
        """Report a weight that was written, and is not masked yet, to its algorithm."""
        for member in self.members:
            for sparse in () if member.masks_gradients else member.sparse_params.values():
                if sparse.guard is guard and loaded:
                    member.weight_was_loaded(sparse)
                elif sparse.guard is guard:
                    member.weight_was_written(sparse, weight)

    def show_sparse(self) -> list[tuple[Tensor, Tensor]]:
        """Mask weights for a closure's evaluation; weights, and what to put back there after it."""
        written = []
        for member in self.members:  # what is masked is not trained, but for these
            for sparse in () if member.masks_gradients else member.sparse_params.values():
                weight = shards.local(sparse.param.detach())
                before = weight.clone()
                sparse.guard.select_weight()
                if not torch.equal(weight, before):
                    written.append((weight, before))
        return written

    def before_update(
        self, optimizer: Optimizer, written: Sequence[tuple[Tensor, Tensor]] = ()
    ) -> None:
        """Mask and change the gradients that the optimizer is about to read.

        ``written`` is what `show_sparse` returned before the evaluation that made them.
        """
        for weight, before in written:
            weight.copy_(before)
        self._set_aside.clear()  # of an earlier evaluation of a closure
        for sparse in self.params.values():
            sparse.guard.begin_write()
        for member in self.members:
            if member.keeps_dense_gradient:
                member.dense_gradients.take_given()
            member.dense_gradients.factors.clear()
            if member.uses_dense_gradient and not member.masks_gradients:
                member.dense_gradients.measure(optimizers.gradient_scale(optimizer))
            select_together(
                (sparse.guard, gradient)
                for sparse in member.sparse_params.values()
                for gradient in sparse.guard.touched_gradient()
            )
            with torch.no_grad():
                member.prepare(optimizer)
            if member.rests_weights:
                self._hide_gradients(optimizer)

    def _hide_gradients(self, optimizer: Optimizer) -> None:
        # Torch optimizers pass over parameters without a gradient, states and decay included.
        # One that takes part in loss scaling would have unscaled what it does not see now.
        scale = optimizers.gradient_scale(optimizer)
        for param in optimizers.parameters(optimizer):
            if param.grad is not None:
                if scale is not None:
                    param.grad.div_(scale)
                self._set_aside.append((param, param.grad))
                param.grad = None

    def after_update(self, optimizer: Optimizer) -> None:
        """Mask what the optimizer wrote, and update masks that are due."""
        for param, gradient in self._set_aside:
            param.grad = gradient
        self._set_aside.clear()
        for member in self.members:
            member.project(optimizer)
            if member.masks_gradients:
                self._mask(member)
        if not optimizers.overflowed(optimizer):
            for member in self.members:
                self._advance(member, optimizer)
        for member in self.members:
            if not member.masks_gradients:
                self._mask(member)
        if not optimizers.overflowed(optimizer):
            for member in self.members:
                member.call_hooks()
                remember = member.keeps_dense_gradient
                member.dense_gradients.end_step(member.autoupdate, remember=remember)
            self.prepare_next_step()
        for sparse in self.params.values():
            sparse.guard.forget_gradient()
            sparse.guard.note_masked()

    def _advance(self, member: SparsityAlgorithm, optimizer: Optimizer) -> None:
        """Count the step; update masks if due."""
        self._note_gradients(member)
        member.read_gradients()
        member.clock.step += 1
        owner = self.owner
        if owner is not None and owner.autoupdate and member.autoupdate:
            due = member.is_update_step(member.step)
            if due:
                member.run_update(optimizer)
            member.advance_schedules(due)

    def _note_gradients(self, member: SparsityAlgorithm) -> None:
        kept, keeps = member.dense_gradients.kept, member.keeps_dense_gradient
        if keeps:
            member.dense_gradients.agree()
        member.without_gradient = {
            name
            for name, sparse in member.sparse_params.items()
            if sparse.param.grad is None or (keeps and name not in kept)
        }
        if member.needs_dense_gradient:
            for name in kept if member.masks_gradients else member.sparse_params:
                sparse = member.sparse_params[name]
                sparse.work.dense_steps += 1
                sparse.work.dense_present += num_true(sparse.mask)

    def enforce(self, member: SparsityAlgorithm) -> None:
        """Apply the masks of an algorithm, which may be new, to its weights and states."""
        self._mask(member)
        self.forget_curvature()

    def forget_curvature(self) -> None:
        """Clear the state of LBFGS, whose flat history of all weights does not follow new masks."""
        if isinstance(optimizer := self.optimizer, torch.optim.LBFGS):
            optimizer.state.clear()

    def _mask(self, member: SparsityAlgorithm) -> None:
        select_together(
            (sparse.guard, tensor)  # all of a mask while it is in the CPU's cache
            for sparse in member.sparse_params.values()
            for tensor in (sparse.param, *self.states(member, sparse))
        )

    def states(
        self, member: SparsityAlgorithm, sparse: SparseParameter
    ) -> Iterable[Tensor | Codes]:
        """Optimizer states that obey the mask of a parameter."""
        if (optimizer := self.optimizer) is None or not member.masks_states:
            return ()
        return optimizers.states_like(optimizer, sparse.param)

    def prepare_next_step(self) -> None:
        """Keep the dense gradients of the next backward pass where algorithms need them."""
        driven = self._optimizer is not None
        for member in self.members:
            member.dense_gradients.keep_next(
                driven and member.keeps_dense_gradient, past=not member.autoupdate
            )


def _open_step(owner: Applied, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Get gradients ready for the optimizer: now, or each time that a closure has made them."""
    driver = owner.driver
    driver.rests = optimizers.only_makes_states(optimizer) and not any(
        sparse.guard.gradient_is_clean for sparse in driver.params.values()
    )
    if driver.rests:
        return None
    driver.check_step(optimizer)
    with torch.no_grad():
        for member in driver.members:
            member.place_hidden()

    def with_masks(closure: Callable[[], Any]) -> Callable[[], Any]:
        show, take = (
            torch.compiler.disable(torch.no_grad()(f))
            for f in (driver.show_sparse, partial(driver.before_update, optimizer))
        )

        def evaluate() -> Any:
            written = show()
            loss = closure()
            take(written)
            return loss

        return evaluate

    changed = optimizers.with_closure(args, kwargs, with_masks)
    if changed is None:
        driver.before_update(optimizer)
    return changed


@torch.no_grad()
def _after_step(owner: Applied, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not owner.driver.rests:
        owner.driver.after_update(optimizer)


@torch.no_grad()
def _enforce(owner: Applied, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Mask what a wrapper wrote after the step of its optimizer."""
    for member in owner.driver.members:
        owner.driver.enforce(member)
