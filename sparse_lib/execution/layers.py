"""Sparse layers that skip the masked work: autograd over the kernels, and masked dense beside it.

A layer is masked when it owns a `weight_mask` buffer; a mask that appears or changes is noticed at
the next forward. Both executions give the masked positions a gradient of exactly zero, except on
steps for which a training algorithm has set `weight._needs_dense_gradient`: then the gradient is
that of the dense weight, as the growth of RigL needs it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from sparse_lib.execution import kernels, operators
from sparse_lib.execution.costs import Costs, Images, worth_skipping
from sparse_lib.execution.products import (
    ROWS,
    Rows,
    SkipProduct,
    Structures,
    Windows,
    reason_for_dense,
    wants_dense_gradient,
)
from sparse_lib.flops.ledger import is_ledger

#: torch 2.6 does not tell whether it exports.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def _is_transformed() -> bool:
    """Whether torch rewrites what runs and takes no autograd functions: `torch.func`, tracing."""
    return torch._C._are_functorch_transforms_active() or torch._C._is_tracing()


def _takes_operators() -> bool:
    """Whether `torch.compile` traces, which keeps operators that torch does not know."""
    compiles = torch.compiler.is_compiling() and not _is_exporting()
    return compiles and not torch._C._are_functorch_transforms_active()


def is_watched() -> bool:
    """Whether a tracer or a dispatch mode other than a ledger has to see torch operators."""
    if torch.compiler.is_compiling() or _is_transformed():
        return True
    if torch._ops._len_torch_dispatch_stack_pre_dispatch():
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    return not all(map(is_ledger, _get_current_dispatch_mode_stack()))


class MaskedWeight(torch.autograd.Function):
    """Selects the unmasked weights, and their gradients, so that no NaN leaks through a mask."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.mask, ctx.parameter = mask, weight
        return weight.where(mask, weight.new_zeros(()))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if wants_dense_gradient(ctx.parameter):
            return gradient, None
        return gradient.where(ctx.mask, gradient.new_zeros(())), None


def _masked(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    compiles = torch.compiler.is_compiling()
    if torch._C._are_functorch_transforms_active() if compiles else _is_transformed():
        return weight.where(mask, weight.new_zeros(()))
    return MaskedWeight.apply(weight, mask)


@dataclass
class Execution:
    """How one layer runs, and what it remembers of its mask.

    Attributes:
        name: Module path, for notices.
        skip: Whether to skip at all; masked dense otherwise.
        crossover: Sparsity below which to run dense; None decides by the layer's size as well.
        notice: Called with the layer's name and the reason whenever it has to run dense.
        owner: The first module that has the layer's weight: its mask is that of all tied layers.
        costs: Those that decide by size; the machine's if None.
    """

    name: str
    skip: bool
    crossover: float | None
    notice: Callable[[str, str], None]
    owner: nn.Module
    costs: Costs | None = None
    structures: Structures | None = field(default=None, repr=False)
    _decision: tuple[tuple[Any, ...], bool] | None = field(default=None, repr=False)
    #: By which a graph of `torch.compile` names this execution.
    number: int = field(init=False, repr=False)
    #: Whether the kernels read bfloat16, which a compiler cannot ask them.
    takes_half: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.number = operators.number_of(self)
        self.takes_half = self.skip and kernels.takes_half()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "structures": None, "_decision": None}  # copies build their own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def tied_mask(self, weight: torch.Tensor) -> torch.Tensor | None:
        owner = self.owner
        return (
            owner._buffers.get("weight_mask") if owner._parameters.get("weight") is weight else None
        )

    def worth_skipping(
        self,
        structure: kernels.Structure,
        dtype: torch.dtype,
        takes_half: bool = False,
        images: Images | None = None,
    ) -> bool:
        if self.crossover is not None:
            return structure.sparsity >= self.crossover
        last, asked = self._decision, (structure, dtype, images)
        if last is None or last[0] != asked:
            rows, columns, half = structure.rows, structure.columns, dtype is torch.bfloat16
            worth = worth_skipping(
                rows,
                columns,
                structure.sparsity,
                images=images,
                half=half,
                multiplies_half=half and takes_half,
                costs=self.costs,
            )
            last = self._decision = asked, worth
        return last[1]

    def find_structures(self, mask: torch.Tensor, *, inputs_first: bool) -> Structures:
        if mask.dim() != 2 or not mask.is_contiguous():
            mask = mask.flatten(1).contiguous()
        fingerprint = kernels.fingerprint(mask)
        if self.structures is None or self.structures.fingerprint != fingerprint:
            self.structures = Structures.build(
                mask, inputs_first=inputs_first, fingerprint=fingerprint
            )
        return self.structures


class SparseLayer(nn.Module):
    """Mixin that gives a layer class a forward over its unmasked weights."""

    _execution: Execution
    inputs_first = False

    def geometry(self) -> Rows | Windows | str:
        """How tokens lie in the input, or why the kernels cannot run this layer."""
        return ROWS

    def dense_forward(self, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _parameter(self, name: str) -> torch.Tensor | None:
        """A parameter, from the module's dictionary where it is there: attributes are slow."""
        parameters = self._parameters
        return parameters[name] if name in parameters else getattr(self, name)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        source, weight, execution = input, self._parameter("weight"), self._execution
        if weight is None:
            raise RuntimeError(
                f"layer {execution.name!r} was packed after the model was compiled; call the model "
                "itself, whose packed layers skip"
            )
        mask = self._buffers.get("weight_mask")
        mask = execution.tied_mask(weight) if mask is None else mask
        if mask is None:
            return self.dense_forward(source, weight)
        mask = mask if mask.dtype is torch.bool else mask != 0
        if execution.skip and _takes_operators():
            found = self._as_operator(source, weight, mask, execution)
            if found is not None:
                return found
        elif execution.skip and not is_watched():
            geometry, bias = self.geometry(), self._parameter("bias")
            reason = reason_for_dense(source, weight, bias, mask)
            if reason is None and isinstance(geometry, str):
                reason = geometry
            if reason:
                execution.notice(execution.name, reason)
            elif self._fits(source, weight, mask, bias, geometry):  # type: ignore[arg-type]
                structures = execution.find_structures(mask, inputs_first=self.inputs_first)
                dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else weight.dtype
                half, images = geometry.takes_half, geometry.images(source)  # type: ignore[union-attr]
                if execution.worth_skipping(structures.forward, dtype, half, images):
                    return self._skip(source, weight, bias, geometry, structures, dtype)  # type: ignore[arg-type]
        return self.dense_forward(source, _masked(weight, mask))

    def _as_operator(
        self, source: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor, execution: Execution
    ) -> torch.Tensor | None:
        """The product as one operator; None where the kernels cannot run this layer."""
        geometry, bias = self.geometry(), self._parameter("bias")
        if isinstance(geometry, str) or reason_for_dense(source, weight, bias, mask):
            return None
        if not self._fits(source, weight, mask, bias, geometry):
            return None
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else weight.dtype
        if execution.takes_half and geometry is ROWS:
            source = source.to(dtype)
        product = functools.partial(
            operators.masked_product,
            weight=weight,
            mask=mask,
            bias=bias,
            number=execution.number,
            sizes=geometry.sizes,
            inputs_first=self.inputs_first,
            dtype=dtype,
        )
        return geometry.batched(source, product)

    def _fits(
        self,
        source: torch.Tensor,
        weight: torch.Tensor,
        mask: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: Rows | Windows,
    ) -> bool:
        """Whether the shapes are those that the kernels read; they look at addresses only."""
        outputs = slice(1, 2) if self.inputs_first else slice(0, 1)
        return (
            weight.numel() > 0
            and mask.shape == weight.shape
            and (bias is None or bias.shape == weight.shape[outputs])
            and geometry.fits(source, weight, self.inputs_first)
        )

    def _skip(
        self,
        source: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: Rows | Windows,
        structures: Structures,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        arguments = weight, bias, geometry, structures, self.inputs_first, dtype
        return geometry.batched(source, lambda batch: SkipProduct.apply(batch, *arguments))


class SkipLinear(SparseLayer):
    """`torch.nn.Linear` over its unmasked weights."""

    def dense_forward(self, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(source, weight, self.bias)  # type: ignore[arg-type]


class SkipConv2d(SparseLayer):
    """`torch.nn.Conv2d` over its unmasked weights."""

    def geometry(self: Any) -> Windows | str:
        if self.groups != 1:
            return f"it has groups={self.groups}, the kernels need groups=1"
        if self.padding_mode != "zeros":
            return f"it has padding_mode={self.padding_mode!r}, the kernels need 'zeros'"
        if isinstance(self.padding, str) and self.padding != "valid":
            return f"it has padding={self.padding!r}, the kernels need numbers"
        padding = (0, 0) if isinstance(self.padding, str) else self.padding
        return Windows(self.kernel_size, self.stride, padding, self.dilation)

    def dense_forward(self: Any, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(source, weight, self.bias)


class SkipConv1D(SparseLayer):
    """`transformers.pytorch_utils.Conv1D`: a linear layer whose weight is `[inputs, outputs]`."""

    inputs_first = True

    def dense_forward(self, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(source, weight.T, self.bias)  # type: ignore[arg-type]


def skipping_mixin(kind: type[nn.Module]) -> tuple[type[SparseLayer], ...]:
    """The mixin whose forward skips for this class of layers, in a tuple, or an empty tuple."""
    if kind is nn.Linear:
        return (SkipLinear,)
    if kind is nn.Conv2d:
        return (SkipConv2d,)
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return (SkipConv1D,)
    return ()
