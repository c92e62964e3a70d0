"""Keeps masked weights, gradients and optimizer states at zero.

A `MaskGuard` sits beside each sparse parameter, in the module that owns it, so that copying
or pickling the module copies the enforcement too.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from sparse_lib.core.codes import Codes, is_quantized
from sparse_lib.core.selection import Selection
from sparse_lib.layers import original
from sparse_lib.masks import shards

if TYPE_CHECKING:
    from sparse_lib.core.driver import Driver

_GUARDS = "_mask_guards"
_WANTS_DENSE = "_needs_dense_gradient"


def mask_name(name: str) -> str:
    """Name of the mask buffer that belongs to the parameter ``name``."""
    return f"{name}_mask"


def guards(module: nn.Module) -> dict[str, MaskGuard]:
    """The guards of the parameters that ``module`` itself owns, by parameter name."""
    return module.__dict__.get(_GUARDS, {})


def all_guards(model: nn.Module) -> list[MaskGuard]:
    """The guards of a model's parameters, in the order of its modules."""
    return [guard for module in model.modules() for guard in guards(module).values()]


# Guards by the id of the parameter that they hook.
_BY_PARAM: weakref.WeakValueDictionary[int, MaskGuard] = weakref.WeakValueDictionary()
_CHANGES: list[Callable[[], object]] = []


def before_masks(change: Callable[[], object]) -> Callable[[], object]:
    """Decorator of a change to torch that is made once, before this process has its first mask."""
    _CHANGES.append(change)
    return change


class MaskGuard:
    """Masks one parameter, its gradient and its optimizer states.

    To *settle* a weight is to mask it again because something other than an optimizer's step may
    have written it.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name
        self._forget()
        module.__dict__.setdefault(_GUARDS, {})[name] = self
        if _settle_loaded not in module._load_state_dict_post_hooks.values():
            module.register_load_state_dict_pre_hook(_refuse_averages)
            module.register_load_state_dict_post_hook(_settle_loaded)
            module.register_state_dict_pre_hook(_settle_averages)
            module.register_forward_pre_hook(_settle_alone)
        self._install(self.param)

    def _forget(self) -> None:
        while _CHANGES:
            _CHANGES.pop()()
        self.owner: str | None = None  # a copy belongs to no algorithm until one adopts it
        self.masks_gradient = True
        self._driver: weakref.ref[Driver] | None = None
        self.selection = Selection()
        self._clean_gradient: tuple[Tensor | None, int, int] = (None, -1, -1)
        self._handle: RemovableHandle | None = None
        # Called with a sharded parameter's gradient before it is masked, and whether an earlier
        # micro-batch's is in it.
        self.before_masking: Callable[[Tensor, bool], None] | None = None
        self._hooked: Tensor | None = None
        self._hooked_contents = 0
        self._settled_versions: tuple[int, int] | None = None
        self._mask_version = -1
        # Of a copy: the original's guard, and how many weights its mask had; -1 to take it anyway.
        self._origin: tuple[weakref.ref[MaskGuard] | None, int] | None = None
        self.was_loaded = self.is_loading = False
        # `_state_of` the parameter when it was last masked; its id alone during a step.
        self._masked_state: tuple[int, ...] = ()
        self._was_frozen = False  # when last looked at
        # Whether a gradient came since the weight was last looked at; steps of other optimizers.
        self._trained, self._missed_steps = False, 0

    @property
    def param(self) -> nn.Parameter:
        """The parameter that the module holds now."""
        return self.module._parameters[self.name]  # type: ignore[return-value]

    @property
    def mask(self) -> Tensor:
        """The bool mask buffer, of the parameter's shape."""
        return self.module._buffers[mask_name(self.name)]  # type: ignore[return-value]

    @property
    def driver(self) -> Driver | None:
        """The driver that decides about the mask; None if it is gone."""
        return None if self._driver is None else self._driver()

    def claim(self, owner: str, driver: Driver, masks_gradient: bool = True) -> None:
        """Record whose algorithm decides about the mask, for messages, and what enforces it."""
        self.owner, self._driver = owner, weakref.ref(driver)
        self.masks_gradient = masks_gradient
        self.want_dense_gradient(False)

    def _note_mask(self, mask: Tensor | None) -> None:
        """Record the version of a mask as already applied to the weight."""
        if mask is not None and not mask.is_inference():
            self._mask_version = shards.local(mask)._version

    def release(self) -> None:
        """Clear the owner; the mask stays enforced, and another algorithm may adopt it."""
        self.owner, self._driver, self.masks_gradient = None, None, True
        self.want_dense_gradient(False)
        self._note_mask(self.mask)

    def remove(self) -> None:
        """Stop enforcing the mask, and remove all hooks of the guard."""
        self.release()
        if self._handle is not None:
            self._handle.remove()
        guards(self.module).pop(self.name, None)
        if not guards(self.module):
            self.module.__dict__.pop(_GUARDS, None)
            _remove_hook(self.module._load_state_dict_pre_hooks, _refuse_averages)
            _remove_hook(self.module._load_state_dict_post_hooks, _settle_loaded)
            _remove_hook(self.module._state_dict_pre_hooks, _settle_averages)
            _remove_hook(self.module._forward_pre_hooks, _settle_alone)

    def want_dense_gradient(self, wanted: bool) -> None:
        """Tell layers that skip masked work whether the next backward pass must be dense."""
        if wanted or not self.masks_gradient:
            setattr(self.param, _WANTS_DENSE, True)
        elif (param := self.module._parameters.get(self.name)) is not None:
            param.__dict__.pop(_WANTS_DENSE, None)

    def ensure(self) -> None:
        """Hook the module's current parameter, if it was replaced or has become trainable."""
        param = self.param
        # A conversion may swap a tensor's contents: the object stays and loses its hooks.
        known = self._hooked is param and self._hooked_contents == param._cdata
        if param.requires_grad and not known:
            self._install(param)

    def _install(self, param: Tensor) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = self._hooked = None
        self._settled_versions = None
        if not param.requires_grad:
            return
        ref = weakref.ref(self)  # a strong reference would tie parameter and module in a C++ cycle

        def mask_gradient(parameter: Tensor) -> None:
            guard = ref()
            if guard is not None and parameter.grad is not None:
                guard._trained = True
                gradient, mask = shards.local(parameter.grad), guard.mask
                known, contents, _ = guard._clean_gradient
                # fully_shard adds a further micro-batch's gradient by one change in place;
                # zero_grad(set_to_none=False) would be another.
                goes_on = known is gradient and gradient._version <= contents + 1
                if shards.is_sharded(parameter.grad) and not goes_on:
                    # Those of one group are views, and would count each other's changes.
                    whole: Any = parameter.grad
                    gradient = whole._local_tensor = gradient.data
                if guard.before_masking is not None:
                    guard.before_masking(parameter.grad, goes_on and guard.masks_gradient)
                if guard.masks_gradient:
                    guard.select(parameter.grad)
                version = -1 if mask is None else shards.local(mask)._version
                guard._clean_gradient = (gradient, gradient._version, version)

        self._handle = param.register_post_accumulate_grad_hook(mask_gradient)
        # After a swap torch has a new dict of hooks, and fires those of the one that is assigned.
        param._post_accumulate_grad_hooks = param._post_accumulate_grad_hooks
        self._hooked, self._hooked_contents = param, param._cdata
        _BY_PARAM[id(param)] = self

    def select(self, tensor: Tensor | Codes) -> None:
        """Set a tensor of the mask's shape, dense, COO or in codes, to zero where the mask is."""
        self.selection.apply(self.mask, tensor)

    def touched_gradient(self) -> tuple[Tensor, ...]:
        """``param.grad`` where it has to be masked; empty if it obeys the mask, or is not to."""
        gradient = self.param.grad
        if gradient is None or not self.masks_gradient or self.gradient_is_clean:
            return ()
        return (gradient,) if gradient.shape == self.param.shape else ()  # else of a former size

    @property
    def gradient_is_clean(self) -> bool:
        """True if neither ``param.grad`` nor the mask changed since this guard masked it."""
        known, version, mask_version = self._clean_gradient
        gradient, mask = self.param.grad, self.mask
        if known is None or gradient is None or known is not shards.local(gradient):
            return False
        now = -1 if mask is None else shards.local(mask)._version
        return (known._version, now) == (version, mask_version)

    def forget_gradient(self) -> None:
        """Drop the reference to the gradient, so that ``zero_grad`` can free it."""
        self._clean_gradient = (None, -1, -1)

    def begin_write(self) -> None:
        """Mask the weight before the next forward pass, should the step fail on its way."""
        self._masked_state, self._missed_steps = (id(self.param),), 0

    def note_masked(self) -> None:
        """Record the weight as masked: if its memory changes from now on, it is masked again."""
        param = self.module._parameters.get(self.name)
        self._trained = False
        if param is not None and not param.is_inference():
            self._masked_state = _state_of(param)

    @property
    def is_replaced(self) -> bool:
        """True if the module's parameter is not the one that was last recorded as masked."""
        return id(self.param) not in self._masked_state[:1]

    def settle_written(self) -> None:
        """Mask a weight written between steps; if through ``.data`` in place, at the next one."""
        param = self.param
        # functional_call puts parameters of the caller's in place, which are not ours to change.
        if self.is_replaced or self._masked_state == _state_of(param):
            return
        if self.mask is None or shards.is_sharded(self.mask) != shards.is_sharded(param):
            return
        if self.mask.shape != param.shape and self.driver is not None:
            self.driver.check_places(anyway=True)
        self._settle(param)
        self._note_missed()
        self.note_masked()

    def _note_missed(self) -> None:
        """Report a weight that was trained, but by no step of the driver's optimizer."""
        if self._trained and (driver := self.driver) is not None:
            self._missed_steps += 1
            driver.missed_step(self._missed_steps)
        self._trained = False

    def _settle(self, weight: Tensor, *, loaded: bool = False) -> None:
        """Mask a weight that ``load_state_dict`` or others wrote, and report it to the driver."""
        if (driver := self.driver) is not None and not self.masks_gradient:
            driver.was_written(self, weight, loaded=loaded)
        self.select(weight)

    @property
    def mask_was_written(self) -> bool:
        """True for a copy whose mask was written since it was made, as a moving average's is."""
        mask = self.mask
        if self.owner is not None or mask is None or mask.is_inference():
            return False
        return shards.local(mask)._version != self._mask_version

    def take_original_mask(self, *, saved: bool = False) -> None:
        """Take the mask of the original where that of a copy has become a union of masks.

        A moving average of bools, as of all that ``state_dict`` names, is true wherever one was. If
        ``saved`` next, the mask is taken also where the weight has left its own, as an average of
        parameters alone does, and from then on.
        """
        reference, count = self._origin or (None, 0)
        origin = None if reference is None else reference()
        mask, param = self.mask, self.module._parameters.get(self.name)
        if origin is None or origin.mask is None or self.owner is not None:
            return
        if mask is None or mask.is_inference() or mask.is_meta or param is None:
            return
        mine, weight = shards.local(mask), shards.local(param.detach())
        theirs = shards.local(origin.mask).to(mine.device)
        if not mine.shape == theirs.shape == weight.shape:
            return
        written = self.mask_was_written
        if saved and not written and bool(weight[~mine].any()):
            count = -1
        is_union = written and int(mine.sum()) >= count and not bool((theirs & ~mine).any())
        if is_union or count < 0:
            mine.copy_(theirs)
            self._origin = reference, count if count < 0 else int(mine.sum())

    def settle_alone(self, reader: nn.Module, *, learns: bool) -> None:
        """Mask the weight if it may have changed since it was masked; called before forward passes.

        Where an optimizer's steps mask it, that is if it was written between two of them; else if
        weight or mask may have changed. So a copy, such as a moving average that gets weights and
        masks by assignment, computes with masked weights. Where no gradients are recorded
        (``learns``), it is masked for the pass of ``reader`` alone, so that evaluating an average
        changes nothing of it. A copy whose mask was never changed is left as it is, since it may
        average weights of other masks.
        """
        driver, param = self.driver, self.module._parameters.get(self.name)
        if driver is not None and param is not None and self._was_frozen == param.requires_grad:
            self._was_frozen = not param.requires_grad
            driver.check_places()
        if driver is not None and param is not None and driver.drives(param):
            if isinstance(param, nn.Parameter):
                self.settle_written()
            return
        mask = self.module._buffers.get(mask_name(self.name))
        # functional_call puts tensors of the caller's here, which are not ours to change.
        if mask is None or not isinstance(param, nn.Parameter):
            return
        if shards.is_sharded(mask) != shards.is_sharded(param):
            return  # fully_shard has gathered the weight, which was masked before
        self.ensure()
        if param.is_inference() or mask.is_inference():
            return
        self.take_original_mask()
        if self.owner is None and not self.mask_was_written:
            return
        if self.owner is None and not learns:
            self._mask_for_a_pass(param, reader)
        elif self._settled_versions != (param._version, mask._version):
            self._trained &= self._settled_versions is not None
            self._note_missed()
            self.select_weight()
            self._settled_versions = (param._version, mask._version)

    def _mask_for_a_pass(self, param: Tensor, reader: nn.Module) -> None:
        """Mask the weight until the forward pass of its reader ends."""
        versions = param._version, self.mask._version
        if self._settled_versions == versions:  # there was nothing to mask
            return
        weight = shards.local(param.detach())
        whole = weight.clone()
        self.select_weight()
        if torch.equal(weight, whole):
            self._settled_versions = param._version, self.mask._version
            return

        @torch.no_grad()
        def restore(*_: Any) -> None:
            handle.remove()
            weight.copy_(whole)

        handle = reader.register_forward_hook(restore, always_call=True)

    def select_weight(self) -> None:
        """Mask the weight in place."""
        self.select(self.param)

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskGuard:
        twin = object.__new__(MaskGuard)
        memo[id(self)] = twin
        twin.module = copy.deepcopy(self.module, memo)
        twin.name = self.name
        twin._forget()
        twin._install(copy.deepcopy(self.param, memo))
        mask = copy.deepcopy(self.mask, memo)
        twin._note_mask(mask)
        if mask is not None and not mask.is_meta:
            twin._origin = weakref.ref(self), int(shards.local(mask).sum())
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "name": self.name, "param": self.param, "mask": self.mask}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.module, self.name = state["module"], state["name"]
        self._forget()
        state["param"].__dict__.pop(_WANTS_DENSE, None)
        self._install(state["param"])
        self._note_mask(state.get("mask"))


def _settle_assigned(module: nn.Module, name: str, param: nn.Parameter) -> None:
    """Mask a parameter that is assigned to the place of a masked one; a hook of all modules."""
    guard = guards(module).get(name)
    mask = module._buffers.get(mask_name(name))
    if guard is None or mask is None or param is None or param.shape != mask.shape:
        return
    if is_quantized(param):
        raise ValueError(
            f"{name!r} has a mask, and what takes its place is quantized ({type(param).__name__}); "
            "call sparse_lib.finalize(model) before the model is quantized"
        )
    if param.device == mask.device and not param.is_meta and not param.is_inference():
        if shards.is_sharded(param) == shards.is_sharded(mask) and not guard.is_loading:
            guard._settle(param)  # of a state that is loaded, the mask comes next


@torch.no_grad()
def _see_others(optimizer: Optimizer, *_: Any) -> None:
    """See to weights that the step of an optimizer wrote and does not mask; a hook of all steps."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            guard = _BY_PARAM.get(id(param)) if param.grad is not None else None
            if guard is None or getattr(guard.driver, "optimizer", None) is optimizer:
                continue
            if shards.is_sharded(param):  # forward passes see what fully_shard gathered of it
                guard._settle(param)
                guard._note_missed()
            elif group.get("fused"):
                torch.autograd.graph.increment_version(param)  # torch's other steps do


@before_masks
def _watch_writes() -> None:
    register_module_parameter_registration_hook(_settle_assigned)
    register_optimizer_step_post_hook(_see_others)


def _state_of(param: Tensor) -> tuple[int, ...]:
    """A value that changes when a parameter is written, or ``param.data = ...`` moves it."""
    return id(param), param._version, shards.local(param).data_ptr()


def _refuse_averages(
    module: nn.Module, state: dict[str, Any], prefix: str, _m: Any, _s: bool, _k: Any, _u: Any,
    errors: list[str],
) -> None:  # fmt: skip
    """Refuse averages of masks, of which bools would be a union; before ``load_state_dict``."""
    for guard in guards(module).values():
        guard.is_loading, name = True, mask_name(guard.name)
        mask = state.get(prefix + name)
        if mask is not None and bool(((mask != 0) & (mask != 1)).any()):
            errors.append(
                f"{prefix + name!r} has other values than 0 and 1, as an average of masks has; "
                "average weights, and copy the newest mask"
            )


@torch.no_grad()
def _settle_averages(module: nn.Module, *_: Any) -> None:
    """Call `MaskGuard.take_original_mask`; a hook before ``state_dict``."""
    for guard in guards(module).values():
        guard.take_original_mask(saved=True)


def _settle_loaded(module: nn.Module, incompatible: Any) -> None:
    """Apply loaded masks to loaded weights; a hook after ``load_state_dict``."""
    for guard in guards(module).values():
        guard.is_loading, missing = False, f".{mask_name(guard.name)}"
        guard.was_loaded = not any(f".{key}".endswith(missing) for key in incompatible[0])
        guard._origin = None if guard.was_loaded else guard._origin
        guard.ensure()
        guard._settle(guard.param, loaded=True)


def _settle_alone(module: nn.Module, _: Any) -> None:
    """Call `MaskGuard.settle_alone`; a hook before forward passes, idle when compiled."""
    # A function of the module's, not a method of a guard's: it survives copying and pickling.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    module = original(module)  # of a twin that is older than its masks
    owners, learns = (module, *_read_by(module)), torch.is_grad_enabled()
    if not any(map(guards, owners)):
        raise RuntimeError(
            f"a {type(module).__name__} took the place of a masked module, and has no mask; "
            "exchange modules first (prepare_qat), then apply"
        )
    with torch.no_grad():
        for owner in owners:
            for guard in guards(owner).values():
                guard.settle_alone(module, learns=learns)


def _read_by(module: nn.Module) -> tuple[nn.Module, ...]:
    """Modules whose weights a module reads without calling them, so that no hook of theirs runs."""
    if isinstance(module, nn.MultiheadAttention):
        return (module.out_proj,)
    return tuple(c for c in module.children() if isinstance(c, nn.ParameterList | nn.ParameterDict))


def watch_readers(model: nn.Module, *, watch: bool = True) -> None:
    """Have modules that read others' masked weights settle these before their passes, or not."""
    for module in model.modules():
        if watch and any(guards(read) for read in _read_by(module)):
            if _settle_alone not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_settle_alone)
        elif not watch and _read_by(module) and not guards(module):
            _remove_hook(module._forward_pre_hooks, _settle_alone)


def _remove_hook(hooks: dict[int, Any], ours: Callable[..., Any]) -> None:
    for key in [key for key, hook in hooks.items() if hook is ours]:
        del hooks[key]
