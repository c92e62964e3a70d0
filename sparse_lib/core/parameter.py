"""Sparse parameters: finding a model's parameters, and one parameter with its mask."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparse_lib.core.codes import is_quantized
from sparse_lib.core.guard import MaskGuard, guards, mask_name
from sparse_lib.core.metrics import MaskHistory, Work, dead_outputs
from sparse_lib.layers import Layout, required_dense
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true, sparsity

#: Parts of names that ``torch.compile`` and checkpoint wrappers add.
WRAPPER = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module)\.")
#: Wrappers that hold the model as ``module``, a name that models use for parts of their own, too.
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


_NORM = "_WeightNorm"  # torch's parametrization
_OLDER_FSDP = (
    "the model holds FullyShardedDataParallel, whose flat parameters cannot carry masks; shard it "
    "with torch.distributed.fsdp.fully_shard, then apply sparsity"
)

_SHARD_FIRST = "call fully_shard before sparsity.apply"


#: Attribute of parameters on the meta device to which an algorithm may be applied, for a plan.
IS_PLANNED = "_is_planned"


Place = tuple["weakref.ref[nn.Module]", str, "weakref.ref[nn.Module]"]
"""A module, the name there of one of its children, and that child."""


@dataclass
class Clock:
    """Optimizer steps taken, which an algorithm and its parameters both know."""

    step: int = 0


class SparseParameter:
    """A parameter, its mask, and what happened to the mask.

    Attributes:
        module: The module that owns the parameter and the ``<name>_mask`` buffer.
        param_name: Name of the parameter inside ``module``.
        name: Full name from the model that the algorithm was applied to, without the prefixes
            that ``torch.compile``, DDP and checkpoint wrappers add.
        initialized: True once the mask holds a pattern (made here, or loaded).
        layout: Where the weight's outputs and inputs are; None if that is not known.
        target: The sparsity that the mask was last asked to have, in [0, 1].
        history: What happened to the mask since initialisation.
        work: What training steps cost, up to the last change of the mask.
    """

    def __init__(
        self,
        clock: Clock,
        module: nn.Module,
        param_name: str,
        name: str,
        layout: Layout | None = None,
    ) -> None:
        self._clock = clock
        self.layout = layout
        self.module = module
        self.param_name = param_name
        self.name = name
        self.initialized = False
        self.target = 0.0
        self.history = MaskHistory()
        self.work = Work()

    @property
    def required_layout(self) -> Layout:
        """The layout of the weight; ValueError if it is not known."""
        if self.layout is None:
            raise ValueError(
                f"parameter {self.name!r} is of no layer of a known kind, so its outputs and "
                "inputs cannot be told apart; leave it out by param_filter"
            )
        return self.layout

    @property
    def guard(self) -> MaskGuard:
        """The guard that enforces the mask."""
        return guards(self.module)[self.param_name]

    @property
    def param(self) -> nn.Parameter:
        """The parameter itself."""
        if self.param_name not in self.module._parameters:
            raise RuntimeError(
                f"{self.name!r} is no parameter of its module any more; parametrize a layer, or "
                "replace its weight, before sparsity is applied to the model"
            )
        return self.module._parameters[self.param_name]  # type: ignore[return-value]

    @property
    def data(self) -> Tensor:
        """The parameter's values, detached; zero where the mask is."""
        return self.param.data

    @property
    def mask(self) -> Tensor:
        """The bool mask, of the parameter's shape. Setting it also zeroes what it drops.

        Raises:
            ValueError: If a mask of another shape is set, or values other than 0 and 1.
        """
        return self.module._buffers[mask_name(self.param_name)]  # type: ignore[return-value]

    @mask.setter
    def mask(self, new: Tensor) -> None:
        old = self.mask
        if not isinstance(new, Tensor) or new.shape != old.shape:
            shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ValueError(
                f"the mask of {self.name!r} must be a tensor of shape {tuple(old.shape)}, "
                f"not {shape}"
            )
        if not is_mask(new):
            raise ValueError(
                f"the mask of {self.name!r} must be bool, or hold 0 and 1 alone; it has other "
                f"{str(new.dtype).removeprefix('torch.')} values, as scores do"
            )
        new = shards.fitted(new.detach().to(device=old.device, dtype=torch.bool), old)
        self.check_directions(new)
        if self.initialized:
            self.count_work()
            self.history.record(old, new)
        self.initialized = True
        if new is not old:
            shards.local(old).copy_(shards.local(new))
        self.prune()

    def check_directions(self, mask: Any) -> None:
        """Raise ValueError if a mask leaves a direction of ``weight_norm`` without weights."""
        name, beside = self.param_name, self.module._parameters
        is_listed = name == "original1" and type(self.module._modules.get("0")).__name__ == _NORM
        gain = beside.get("original0" if is_listed else f"{name[:-2]}_g")
        if not (is_listed or name.endswith("_v")) or gain is None:
            return
        inside = [dim for dim, size in enumerate(gain.shape) if size == 1]
        kept = shards.whole(torch.as_tensor(mask)).reshape(self.param.shape)
        if not bool(kept.sum(inside).all()):
            raise ValueError(
                f"the mask of {self.name!r} leaves an output without weights, and weight_norm "
                "divides by the norm of these; take a lower sparsity, or leave this weight dense"
            )

    def count_work(self) -> Work:
        """Count the steps taken with the present mask, and return all work so far."""
        steps = self._clock.step - self.work.until
        if steps:
            self.work.present += steps * num_true(self.mask)
            self.work.until = self._clock.step
        return self.work

    def work_of_a_step(self, dense_gradient: bool) -> Work:
        """Work of one step with the present mask, with a dense weight gradient or without."""
        present = num_true(self.mask)
        return Work(present, int(dense_gradient), present * dense_gradient)

    @property
    def fits(self) -> bool:
        """False if the module has a parameter of another shape than the mask's by now."""
        param, mask = self.module._parameters.get(self.param_name), self.mask
        return param is None or mask is None or param.shape == mask.shape

    @property
    def sparsity(self) -> float:
        """Fraction of zeros in the mask, in [0, 1]."""
        return sparsity(self.mask)

    def metrics(self) -> dict[str, Any]:
        """One entry of ``"tensors"`` in `sparse_lib.SparsityAlgorithm.metrics`."""
        mask, history = self.mask, self.history
        return {
            "sparsity": sparsity(mask),
            "target": self.target,
            "churn": history.churn,
            "itop": history.in_time_overparameterization(mask),
            "degree_of_constraint": history.degree_of_constraint(),
            "survival": history.survival,
            "dead_units": dead_outputs(mask, self.layout),
            "num_updates": history.num_updates,
        }

    @torch.no_grad()
    def prune(self) -> None:
        """Set the weights that the mask drops to zero, and their gradients."""
        self.guard.select_weight()
        for gradient in self.guard.touched_gradient():
            self.guard.select(gradient)

    def __repr__(self) -> str:
        shape = tuple(self.param.shape)
        return f"SparseParameter({self.name!r}, shape={shape}, sparsity={self.sparsity:.4f})"


class FirstMask(NamedTuple):
    """A parameter, its target at first, and the mask to set; None where it has one already."""

    sparse: SparseParameter
    target: float
    mask: Tensor | None


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor is bool or holds 0 and 1 alone."""
    if tensor.dtype is torch.bool or tensor.is_meta:
        return True
    values = shards.local(tensor.detach())
    return bool(((values == 0) | (values == 1)).all())


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile`` and data-parallel wrappers."""
    while True:
        if "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        elif isinstance(model, PARALLEL):
            model = model.module
        else:
            return model


def find_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yields (full name, owning module, name there) for every parameter that may become sparse.

    Tied parameters come once, under their first name. Left out: what carries
    ``requires_dense = True``, or lies inside a module that does, what is not floating point, and
    what has no elements.

    Raises:
        ValueError: If a parameter is sharded, on the meta device or without a shape, or a module
            is scripted.
    """
    seen: set[int] = set()
    dense = required_dense(unwrap(model))
    for path, module in unwrap(model).named_modules():
        if any(cls.__name__ == "FullyShardedDataParallel" for cls in type(module).__mro__):
            raise ValueError(_OLDER_FSDP)
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{path or 'the model'} is scripted or traced already; apply the algorithm to the "
                "model first, train it, and script what sparse_lib.finalize leaves"
            )
        for name, param in module._parameters.items():
            if param is None or id(param) in seen:
                continue
            seen.add(id(param))
            full_name = WRAPPER.sub("", f"{path}.{name}" if path else name)
            if id(param) in dense:
                continue
            check_parameter(full_name, param)
            if not is_quantized(param) and param.numel():
                yield full_name, module, name


def check_parameter(name: str, param: nn.Parameter) -> None:
    """Raise ValueError, with what to do instead, if a parameter cannot carry a mask."""
    if isinstance(param, nn.parameter.UninitializedParameter):
        raise ValueError(
            f"{name!r} has no shape yet; run one forward pass before applying sparsity"
        )
    shards.check(name, param)
    if param.device.type == "meta" and not getattr(param, IS_PLANNED, False):
        raise ValueError(f"{name!r} is on the meta device; materialise the model first")


def check_driven(name: str, sparse: SparseParameter) -> None:
    """Raise ValueError if a parameter has become another than it was when it got its mask."""
    check_parameter(name, sparse.param)
    if shards.is_sharded(sparse.param) != shards.is_sharded(sparse.mask):
        raise ValueError(f"{name!r} was sharded after it got its mask; {_SHARD_FIRST}")


def adopt(
    params: Mapping[str, SparseParameter],
    clock: Clock,
    found: Iterable[tuple[str, nn.Module, str]],
    layouts: Mapping[int, Layout | None],
) -> dict[str, SparseParameter]:
    """Sparse parameters for those found in a model that an algorithm has not yet, by full name.

    Their modules are left as they are until `attach`. ``layouts`` are by the id of a parameter.

    Raises:
        ValueError: If a name is known from another model, a parameter belongs to another algorithm,
            or a buffer has the mask's name without being one.
    """
    new = {}
    for name, module, param_name in found:
        if (known := params.get(name)) is None:
            layout = layouts.get(id(module._parameters[param_name]))
            new[name] = _candidate(SparseParameter(clock, module, param_name, name, layout))
        elif known.module is not module:
            raise ValueError(
                f"this algorithm already sparsifies a parameter {name!r} of another model; "
                "call detach() on it first, or make a second algorithm"
            )
    return new


def _candidate(sparse: SparseParameter) -> SparseParameter:
    module, param_name, name = sparse.module, sparse.param_name, sparse.name
    param = module._parameters[param_name]
    assert param is not None
    buffer = module._buffers.get(mask_name(param_name))
    guard = guards(module).get(param_name)
    if guard is not None and buffer is not None and guard.owner is not None:
        raise ValueError(
            f"{name!r} is already sparsified by {guard.owner}; to go on from its zeros, call "
            "sparse_lib.finalize(model) and give the next algorithm init_method='from_zeros'; to "
            "begin dense, call sparse_lib.densify(model)"
        )
    if buffer is None and hasattr(module, mask_name(param_name)):
        raise ValueError(f"{name!r} needs a buffer {mask_name(param_name)!r}, a name in use")
    if buffer is not None and shards.is_sharded(buffer) != shards.is_sharded(param):
        raise ValueError(f"{name!r} was sharded after it got its mask; {_SHARD_FIRST}")
    if buffer is not None and (buffer.dtype != torch.bool or buffer.shape != param.shape):
        raise ValueError(f"{name!r} has a buffer {mask_name(param_name)!r} that is not its mask")
    sparse.initialized = buffer is not None
    return sparse


def attach(sparse: SparseParameter) -> None:
    """Give a candidate a mask buffer, of ones, and a guard, where it has none yet."""
    module, param = sparse.module, sparse.param
    if module._buffers.get(mask_name(sparse.param_name)) is None:
        full = torch.ones(shards.local(param).shape, dtype=torch.bool, device=param.device)
        module.register_buffer(mask_name(sparse.param_name), shards.as_shard(full, param))
    if sparse.param_name not in guards(module):
        MaskGuard(module, sparse.param_name)


def replaced(
    params: Iterable[SparseParameter], models: Sequence[nn.Module]
) -> list[SparseParameter]:
    """Parameters of another shape than their mask, or whose place another module has taken."""
    modules = [(n, module) for model in models for n, module in model.named_modules()]
    inside, taken = {id(m) for _, m in modules}, {WRAPPER.sub("", f"{n}.") for n, _ in modules}
    return [
        s
        for s in params
        if not s.fits or id(s.module) not in inside and f"{s.name.rpartition('.')[0]}." in taken
    ]


def places_of(params: Iterable[SparseParameter], models: Sequence[nn.Module]) -> list[Place]:
    """Places of masked modules, and of all modules around them."""
    masked, places = {id(sparse.module) for sparse in params}, []
    for model in models:
        ways = {path for path, module in model.named_modules() if id(module) in masked}
        ways |= {path[:at] for path in ways for at, dot in enumerate(path) if dot == "."}
        for path in ways - {""}:
            owner, _, name = path.rpartition(".")
            module = model.get_submodule(path)
            places.append((weakref.ref(model.get_submodule(owner)), name, weakref.ref(module)))
    return places


def has_other(place: Place) -> bool:
    """Whether another module, or none, is where one was."""
    owner, name, module = place[0](), place[1], place[2]()
    return owner is not None and owner._modules.get(name) is not module


def strip(sparse: SparseParameter) -> None:
    """Take the guard and the mask away from a weight that has another shape now."""
    sparse.guard.remove()
    del sparse.module._buffers[mask_name(sparse.param_name)]


def take_over(model: nn.Module, masks: Mapping[int, Tensor]) -> None:
    """Give masks, by the id of their parameter, to the modules that hold the parameters now."""
    for module in model.modules() if masks else ():
        for name, param in module._parameters.items():
            if id(param) in masks and mask_name(name) not in module._buffers:
                module.register_buffer(mask_name(name), masks[id(param)])


def some(names: Sequence[str]) -> str:
    """The first name, and how many more there are."""
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def warn(message: str) -> None:
    """Warn once, attributed to the caller's code."""
    warnings.warn(message, UserWarning, stacklevel=4)
