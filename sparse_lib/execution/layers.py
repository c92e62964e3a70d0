"""Sparse layers that skip the masked work: autograd over the kernels, and masked dense beside it.

A layer is masked when it owns a `weight_mask` buffer; a mask that appears or changes is noticed at
the next forward. Both executions give the masked positions a gradient of exactly zero, except on
steps for which a training algorithm has set `weight._needs_dense_gradient`: then the gradient is
that of the dense weight, as the growth of RigL needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from sparse_lib.execution import kernels, operators, products
from sparse_lib.execution.costs import Costs, worth_skipping
from sparse_lib.execution.products import Product, Rows, SkipProduct, Structures, Windows
from sparse_lib.flops.ledger import is_ledger

_ROWS, _INPUTS_FIRST = Rows(), Rows(inputs_first=True)

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
    def forward(ctx: Any, weight: Tensor, mask: Tensor) -> Tensor:
        ctx.mask, ctx.parameter = mask, weight
        return weight.where(mask, weight.new_zeros(()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if products.wants_dense_gradient(ctx.parameter):
            return gradient, None
        return gradient.where(ctx.mask, gradient.new_zeros(())), None


def _masked(weight: Tensor, mask: Tensor) -> Tensor:
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

    def tied_mask(self, weight: Tensor) -> Tensor | None:
        is_tied = self.owner._parameters.get("weight") is weight
        return self.owner._buffers.get("weight_mask") if is_tied else None

    def product(
        self, source: Tensor, mask: Tensor, geometry: Rows | Windows, dtype: torch.dtype
    ) -> Product | None:
        """The layer's product by the kernels; None where masked dense execution is faster."""
        found = self._find_structures(mask, geometry.inputs_first)
        is_worth = self._is_worth(found.forward, dtype, geometry, source)
        return Product(geometry, found, dtype) if is_worth else None

    def _is_worth(
        self,
        structure: kernels.Structure,
        dtype: torch.dtype,
        geometry: Rows | Windows,
        source: Tensor,
    ) -> bool:
        if self.crossover is not None:
            return structure.sparsity >= self.crossover
        images = geometry.images(source)
        last, asked = self._decision, (structure, dtype, images)
        if last is None or last[0] != asked:
            half, sizes = dtype is torch.bfloat16, (structure.rows, structure.columns)
            takes, costs = half and geometry.takes_half, self.costs
            options: dict[str, Any] = {"half": half, "multiplies_half": takes, "costs": costs}
            worth = worth_skipping(*sizes, structure.sparsity, images=images, **options)
            last = self._decision = asked, worth
        return last[1]

    def _find_structures(self, mask: Tensor, inputs_first: bool) -> Structures:
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

    weight: Tensor | None
    bias: Tensor | None
    _execution: Execution

    def geometry(self) -> Rows | Windows | str:
        """How tokens lie in the input, or why the kernels cannot run this layer."""
        return _ROWS

    def dense_forward(self, source: Tensor, weight: Tensor) -> Tensor:
        return self.geometry().dense(source, weight, self.bias)  # type: ignore[union-attr]

    def forward(self, input: Tensor) -> Tensor:
        source, weight, execution = input, self.weight, self._execution
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
        compiles = execution.skip and _takes_operators()
        if compiles or (execution.skip and not is_watched()):
            geometry, bias = self.geometry(), self.bias
            reason = products.reason_for_dense(source, weight, bias, mask)
            if reason is not None or isinstance(geometry, str):
                if not compiles:
                    execution.notice(execution.name, reason or str(geometry))
            elif _fits(source, weight, mask, bias, geometry):
                dtype = products.product_dtype(weight)
                if compiles:
                    if execution.takes_half and isinstance(geometry, Rows):
                        source = source.to(dtype)
                    rest = weight, mask, bias, execution.number, geometry.sizes, dtype
                    return geometry.batched(source, lambda x: operators.masked_product(x, *rest))
                product = execution.product(source, mask, geometry, dtype)
                if product is not None:
                    return geometry.batched(
                        source, lambda x: SkipProduct.apply(x, weight, bias, product)
                    )
        return self.dense_forward(source, _masked(weight, mask))


def _fits(
    source: Tensor, weight: Tensor, mask: Tensor, bias: Tensor | None, geometry: Rows | Windows
) -> bool:
    """Whether the shapes are those that the kernels read; they look at addresses only."""
    outputs = slice(1, 2) if geometry.inputs_first else slice(0, 1)
    return (
        weight.numel() > 0
        and mask.shape == weight.shape
        and (bias is None or bias.shape == weight.shape[outputs])
        and geometry.fits(source, weight)
    )


class SkipLinear(SparseLayer):
    """`torch.nn.Linear` over its unmasked weights."""


class SkipConv1D(SparseLayer):
    """`transformers.pytorch_utils.Conv1D`: a linear layer whose weight is `[inputs, outputs]`."""

    def geometry(self) -> Rows:
        return _INPUTS_FIRST


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

    def dense_forward(self: Any, source: Tensor, weight: Tensor) -> Tensor:
        return self._conv_forward(source, weight, self.bias)


def skipping_mixin(kind: type[nn.Module]) -> tuple[type[SparseLayer], ...]:
    """The mixin whose forward skips for this class of layers, in a tuple, or an empty tuple."""
    if kind is nn.Linear:
        return (SkipLinear,)
    if kind is nn.Conv2d:
        return (SkipConv2d,)
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return (SkipConv1D,)
    return ()
