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
from torch.nn.grad import conv2d_weight
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from sparse_lib.execution import kernels, semi_structured
from sparse_lib.flops.ledger import Ledger, is_recording, record


def _wants_dense_gradient(weight: torch.Tensor) -> bool:
    return getattr(weight, "_needs_dense_gradient", False)


def _is_transformed() -> bool:
    """Whether torch rewrites what runs and takes no autograd functions: `torch.func`, tracing."""
    return torch._C._are_functorch_transforms_active() or torch._C._is_tracing()


def _is_watched() -> bool:
    """Whether a tracer or a dispatch mode other than a ledger has to see torch operators."""
    if torch.compiler.is_compiling() or _is_transformed():
        return True
    if torch._ops._len_torch_dispatch_stack_pre_dispatch():
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    return not all(isinstance(mode, Ledger) for mode in _get_current_dispatch_mode_stack())


class MaskedWeight(torch.autograd.Function):
    """Selects the unmasked weights, and their gradients, so that no NaN leaks through a mask."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.mask, ctx.parameter = mask, weight
        return weight.where(mask, weight.new_zeros(()))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if _wants_dense_gradient(ctx.parameter):
            return gradient, None
        return gradient.where(ctx.mask, gradient.new_zeros(())), None


def _masked(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling() and _is_transformed():
        return weight.where(mask, weight.new_zeros(()))
    return MaskedWeight.apply(weight, mask)


@dataclass(frozen=True)
class Structures:
    """A mask in both orientations, built once per mask.

    Attributes:
        forward: Rows are output features.
        backward: Rows are input features.
        fingerprint: Hash of that mask.
    """

    forward: kernels.Structure
    backward: kernels.Structure
    fingerprint: int

    @classmethod
    def build(cls, mask: torch.Tensor, *, inputs_first: bool, fingerprint: int) -> "Structures":
        return cls(
            kernels.Structure(mask, transposed=inputs_first),
            kernels.Structure(mask, transposed=not inputs_first),
            fingerprint,
        )


class Rows:
    """Geometry of a matrix product: the tokens are all leading dimensions of the input."""

    @property
    def takes_half(self) -> bool:
        """Whether the kernels read bfloat16."""
        return kernels.takes_half()

    def fits(self, source: torch.Tensor, weight: torch.Tensor, inputs_first: bool) -> bool:
        """Whether the kernels can multiply these shapes; torch has an error for most others."""
        inputs = 0 if inputs_first else 1
        return weight.dim() == 2 and source.shape[-1:] == weight.shape[inputs : inputs + 1]

    def images(self, source: torch.Tensor) -> None:
        """Rows are no windows of images."""

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        if source.is_contiguous() or (source.dim() == 2 and source.stride(1) == 1):
            return source
        return source.contiguous()

    def source_view(self, source: torch.Tensor) -> kernels.View:
        return kernels.rows_view(source)

    target_view = source_view

    def new_target(self, source: torch.Tensor, features: int) -> torch.Tensor:
        return source.new_empty((*source.shape[:-1], features))

    def new_source_gradient(self, source: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(source, memory_format=torch.contiguous_format)

    def bias_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.reshape(-1, gradient.shape[-1]).sum(0)

    def weight_gradient(
        self, source: torch.Tensor, gradient: torch.Tensor, shape: torch.Size, inputs_first: bool
    ) -> torch.Tensor:
        source = source.reshape(-1, source.shape[-1])
        gradient = gradient.reshape(-1, gradient.shape[-1])
        product = source.T @ gradient if inputs_first else gradient.T @ source
        return product.view(shape)


_ROWS = Rows()


@dataclass(frozen=True)
class Windows:
    """Geometry of a convolution: the tokens are window positions, unfolded panel by panel."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    takes_half = False

    def fits(self, source: torch.Tensor, weight: torch.Tensor, inputs_first: bool) -> bool:
        """Whether the kernels can multiply these shapes; torch has an error for most others."""
        return (
            source.dim() in (3, 4)
            and weight.shape[1:] == (source.shape[-3], *self.kernel)
            and min(*self.stride, *self.dilation) > 0
            and min(self.padding) >= 0
            and min(self._out_size(source)) > 0
        )

    def _out_size(self, source: torch.Tensor) -> tuple[int, int]:
        sizes = zip(source.shape[-2:], self.kernel, self.stride, self.padding, self.dilation)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return height, width

    def images(self, source: torch.Tensor) -> kernels.Images:
        """What the windows lie in, by which a convolution is worth skipping or not."""
        width = self._out_size(source)[1]
        return kernels.Images(source.shape[-3], width, self.stride[0] * self.stride[1])

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source.contiguous()

    def source_view(self, source: torch.Tensor) -> kernels.View:
        return kernels.image_view(
            source,
            out_size=self._out_size(source),
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )

    def target_view(self, target: torch.Tensor) -> kernels.View:
        return kernels.image_view(target, out_size=(target.shape[2], target.shape[3]))

    def new_target(self, source: torch.Tensor, features: int) -> torch.Tensor:
        return source.new_empty(source.shape[0], features, *self._out_size(source))

    def new_source_gradient(self, source: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(source, memory_format=torch.contiguous_format)

    def bias_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.sum((0, 2, 3))

    def weight_gradient(
        self, source: torch.Tensor, gradient: torch.Tensor, shape: torch.Size, inputs_first: bool
    ) -> torch.Tensor:
        return conv2d_weight(source, shape, gradient, self.stride, self.padding, self.dilation)


def _report(
    part: str,
    weight: torch.Tensor,
    num_weights: int,
    tokens: int,
    source: torch.Tensor | None = None,
) -> None:
    """Tells listening ledgers of one product, at 2 FLOPs per multiply-add, and what it keeps."""
    dense, executed = 2 * tokens * weight.numel(), 2 * tokens * num_weights
    record(weight, part, dense_flops=dense, executed_flops=executed, source=source)


def _float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float32 else tensor.float()


class SkipProduct(torch.autograd.Function):
    """The product of a layer and its gradients, over the unmasked weights only.

    Products in bfloat16 are summed in float32, and each result is rounded once. Where the processor
    or the geometry takes no bfloat16, they are products of float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        source: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: Rows | Windows,
        structures: Structures,
        inputs_first: bool,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.source_dtype = source.dtype
        ctx.half = dtype is torch.bfloat16 and geometry.takes_half
        source = geometry.prepare(source.to(dtype) if ctx.half else source)
        ctx.save_for_backward(source, weight)
        ctx.parameter, ctx.geometry, ctx.structures = weight, geometry, structures
        ctx.inputs_first, ctx.bias_dtype = inputs_first, None if bias is None else bias.dtype
        numbers = source if ctx.half else _float(source)
        target = geometry.new_target(numbers, structures.forward.rows)
        view = geometry.source_view(numbers)
        structures.forward.multiply(
            weight.contiguous(),
            view,
            geometry.target_view(target),
            _float(bias).contiguous() if bias is not None else None,
        )
        if is_recording():
            kept = source if any(ctx.needs_input_grad) else None
            _report("forward", weight, structures.forward.num_nonzero, view.tokens, kept)
        return target if target.dtype is dtype else target.to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        source, weight = ctx.saved_tensors
        geometry, structures = ctx.geometry, ctx.structures
        needs_source, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dense = needs_weight and _wants_dense_gradient(ctx.parameter)
        gradient = geometry.prepare(gradient)
        if not ctx.half:
            source, gradient = _float(source), _float(gradient)
        source_gradient = geometry.new_source_gradient(source) if needs_source else None
        view = geometry.source_view(source_gradient) if needs_source else None
        source_view, target_view = geometry.source_view(source), geometry.target_view(gradient)
        weight_gradient = bias_gradient = None
        if needs_weight and not dense:
            if needs_bias:
                rows = structures.forward.rows
                bias_gradient = gradient.new_empty(rows, dtype=torch.float32)
            weight_gradient = kernels.gradients(
                structures.forward,
                structures.backward,
                weight.contiguous(),
                source_view,
                target_view,
                view,
                bias_gradient,
            )
        elif view is not None:
            structures.backward.multiply(weight.contiguous(), target_view, view)
        if is_recording():
            num_nonzero, tokens = structures.forward.num_nonzero, source_view.tokens
            if needs_source:
                _report("input_gradient", ctx.parameter, num_nonzero, tokens)
            if needs_weight:
                num_weights = weight.numel() if dense else num_nonzero
                _report("weight_gradient", ctx.parameter, num_weights, tokens)
        if dense:
            with _disable_current_modes():  # a ledger cannot assign these operators to a layer
                weight_gradient = geometry.weight_gradient(
                    source, gradient, weight.shape, ctx.inputs_first
                )
        if needs_bias and bias_gradient is None:
            bias_gradient = geometry.bias_gradient(gradient)
        if source_gradient is not None and source_gradient.dtype is not ctx.source_dtype:
            source_gradient = source_gradient.to(ctx.source_dtype)
        if weight_gradient is not None and weight_gradient.dtype is not weight.dtype:
            weight_gradient = weight_gradient.to(weight.dtype)
        if bias_gradient is not None and bias_gradient.dtype is not ctx.bias_dtype:
            bias_gradient = bias_gradient.to(ctx.bias_dtype)
        return source_gradient, weight_gradient, bias_gradient, None, None, None, None


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
    costs: kernels.Costs | None = None
    structures: Structures | None = field(default=None, repr=False)
    _decision: tuple[tuple[Any, ...], bool] | None = field(default=None, repr=False)
    #: Of the execution on sparse tensor cores; None for the others.
    two_of_four: semi_structured.Masks | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "structures": None, "_decision": None}  # copies build their own

    def reason_for_dense(
        self,
        source: torch.Tensor,
        weight: torch.Tensor,
        mask: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> str | None:
        casts = torch.is_autocast_enabled("cpu")
        tensors = [("input", source), ("weight", weight), ("mask", mask)]
        for label, tensor in tensors if bias is None else [*tensors, ("bias", bias)]:
            if type(tensor) not in (torch.Tensor, nn.Parameter):
                return f"its {label} is a {type(tensor).__name__}, the kernels need a torch.Tensor"
            if not tensor.is_cpu:
                return f"its {label} is on {tensor.device}, the kernels need the CPU"
            if tensor is mask:
                continue
            if tensor.dtype not in (torch.float32, torch.bfloat16):
                return f"its {label} is {tensor.dtype}, the kernels need torch.float32 or bfloat16"
            if tensor.dtype is not weight.dtype and not casts:
                return f"its {label} is {tensor.dtype}, its weight is {weight.dtype}"
            if tensor.layout is not torch.strided:
                return f"its {label} has layout {tensor.layout}, the kernels need torch.strided"
        if casts and (dtype := torch.get_autocast_dtype("cpu")) is not torch.bfloat16:
            return f"autocast casts to {dtype}, the kernels need torch.float32 or bfloat16"
        if weight.numel() >= 2**31:
            return f"its weight has {weight.numel()} elements, the kernels need fewer than 2^31"
        return None

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
        images: kernels.Images | None = None,
    ) -> bool:
        if self.crossover is not None:
            return structure.sparsity >= self.crossover
        last, asked = self._decision, (structure, dtype, images)
        if last is None or last[0] != asked:
            rows, columns, half = structure.rows, structure.columns, dtype is torch.bfloat16
            worth = kernels.worth_skipping(
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
        return _ROWS

    def dense_forward(self, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _parameter(self, name: str) -> torch.Tensor | None:
        """A parameter, from the module's dictionary where it is there: attributes are slow."""
        parameters = self._parameters
        return parameters[name] if name in parameters else getattr(self, name)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        weight, execution = self._parameter("weight"), self._execution
        assert weight is not None
        mask = self._buffers.get("weight_mask")
        mask = execution.tied_mask(weight) if mask is None else mask
        if mask is None:
            return self.dense_forward(source, weight)
        mask = mask if mask.dtype is torch.bool else mask != 0
        if execution.two_of_four is not None and not _is_watched():
            found = self._on_tensor_cores(source, weight, mask, execution)
            if found is not None:
                return found
        elif execution.skip and not _is_watched():
            geometry, bias = self.geometry(), self._parameter("bias")
            reason = execution.reason_for_dense(source, weight, mask, bias)
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

    def _on_tensor_cores(
        self, source: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor, execution: Execution
    ) -> torch.Tensor | None:
        """The product under a 2:4 mask; None, with a notice, where it has to run dense."""
        if self.geometry() is not _ROWS:
            execution.notice(execution.name, "it is no linear layer, and 2:4 needs one")
            return None
        kind = source.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        matrix, shown = (weight.T, mask.T) if self.inputs_first else (weight, mask)
        reason = semi_structured.reason_for_dense(source, matrix, shown, dtype)
        forward, backward = (None, None)
        if reason is None:
            assert execution.two_of_four is not None
            forward, backward = execution.two_of_four.forms(shown)
            if forward is None:
                reason = "its mask keeps more than two of four consecutive inputs"
        if reason or forward is None:
            execution.notice(execution.name, reason or "")
            return None
        wants = functools.partial(_wants_dense_gradient, weight)
        bias = self._parameter("bias")
        return semi_structured.linear(source, matrix, bias, (forward, backward), dtype, wants)

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
        unbatched = isinstance(geometry, Windows) and source.dim() == 3
        batched = source.unsqueeze(0) if unbatched else source
        target = SkipProduct.apply(
            batched, weight, bias, geometry, structures, self.inputs_first, dtype
        )
        return target.squeeze(0) if unbatched else target


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
