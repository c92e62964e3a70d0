"""Products over the unmasked weights, and their gradients: the kernels behind autograd.

Structures hold a mask as the kernels read it, geometries say how tokens lie in an input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.utils._python_dispatch import _disable_current_modes

from sparse_lib.execution import kernels
from sparse_lib.execution.costs import Images
from sparse_lib.flops.ledger import record

#: Elements of a dense weight that the kernels can number.
MOST_WEIGHTS = 2**31 - 1


def wants_dense_gradient(weight: Tensor) -> bool:
    """Whether an algorithm has asked for the gradient of masked weights, too, at this step."""
    return getattr(weight, "_needs_dense_gradient", False)


def reason_for_dense(
    source: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None = None
) -> str | None:
    """Why the kernels cannot multiply these tensors; None where they can.

    Args:
        source: The layer's input.
        weight: Dense, or its unmasked numbers alone.
        bias: Of the output's features, or None.
        mask: Of a dense weight.
    """
    casts = torch.is_autocast_enabled("cpu")
    tensors = {"input": source, "weight": weight, "mask": mask, "bias": bias}
    for label, tensor in tensors.items():
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"its {label} is a {type(tensor).__name__}, the kernels need a Tensor"
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
    if weight.numel() > MOST_WEIGHTS:
        return f"its weight has {weight.numel()} elements, the kernels need fewer than 2^31"
    return None


@dataclass(frozen=True)
class Structures:
    """A mask, by its hash, in both orientations: rows of outputs, and of inputs; built once."""

    forward: kernels.Structure
    backward: kernels.Structure
    fingerprint: int

    @classmethod
    def build(cls, mask: Tensor, *, inputs_first: bool, fingerprint: int) -> "Structures":
        forward = kernels.Structure(mask, transposed=inputs_first)
        return cls(forward, kernels.Structure(mask, transposed=not inputs_first), fingerprint)

    def packed(self, mask: Tensor) -> "Structures":
        """Structures for a weight of unmasked numbers alone, in the order of its storage."""
        ranks = mask.flatten().cumsum(0, dtype=torch.int32).sub_(1)
        forward, backward = self.forward.packed(ranks), self.backward.packed(ranks)
        return Structures(forward, backward, self.fingerprint)


@dataclass(frozen=True)
class Rows:
    """Geometry of a matrix product: the tokens are all leading dimensions of the input.

    Attributes:
        inputs_first: Whether the weight is `[inputs, outputs]`.
    """

    inputs_first: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The geometry as a graph of `torch.compile` holds it; see `geometry_of`."""
        return (1,) if self.inputs_first else ()

    @property
    def takes_half(self) -> bool:
        """Whether the kernels read bfloat16."""
        return kernels.takes_half()

    def fits(self, source: Tensor, weight: Tensor) -> bool:
        """Whether the kernels can multiply these shapes; torch has an error for most others."""
        inputs = 0 if self.inputs_first else 1
        return weight.dim() == 2 and source.shape[-1:] == weight.shape[inputs : inputs + 1]

    def images(self, source: Tensor) -> None:
        """Rows are no windows of images."""

    def batched(self, source: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """The ``product`` of the input, which may have any leading dimensions."""
        return product(source)

    def prepare(self, source: Tensor) -> Tensor:
        if source.is_contiguous() or (source.dim() == 2 and source.stride(1) == 1):
            return source
        return source.contiguous()

    def source_view(self, source: Tensor) -> kernels.View:
        return kernels.rows_view(source)

    target_view = source_view

    def new_target(self, source: Tensor, features: int) -> Tensor:
        return source.new_empty((*source.shape[:-1], features))

    def new_source_gradient(self, source: Tensor) -> Tensor:
        return torch.empty_like(source, memory_format=torch.contiguous_format)

    def dense(self, source: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output by torch; its gradients are the next three."""
        return F.linear(source, weight.T if self.inputs_first else weight, bias)

    def source_gradient(self, source: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
        return gradient @ (weight.T if self.inputs_first else weight)

    def weight_gradient(self, source: Tensor, gradient: Tensor, shape: torch.Size) -> Tensor:
        source = source.reshape(-1, source.shape[-1])
        gradient = gradient.reshape(-1, gradient.shape[-1])
        return (source.T @ gradient if self.inputs_first else gradient.T @ source).view(shape)

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        return gradient.reshape(-1, gradient.shape[-1]).sum(0)


@dataclass(frozen=True)
class Windows:
    """Geometry of a convolution: the tokens are window positions, unfolded panel by panel."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    takes_half = inputs_first = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """As of `Rows`."""
        return (*self.kernel, *self.stride, *self.padding, *self.dilation)

    def fits(self, source: Tensor, weight: Tensor) -> bool:
        """As of `Rows`."""
        return (
            source.dim() in (3, 4)
            and weight.shape[1:] == (source.shape[-3], *self.kernel)
            and min(*self.stride, *self.dilation) > 0
            and min(self.padding) >= 0
            and min(self._out_size(source)) > 0
        )

    def _out_size(self, source: Tensor) -> tuple[int, int]:
        sizes = zip(source.shape[-2:], self.kernel, self.stride, self.padding, self.dilation)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return height, width

    def images(self, source: Tensor) -> Images:
        """The images of the windows, by which a convolution is worth skipping or not."""
        width = self._out_size(source)[1]
        return Images(source.shape[-3], width, self.stride[0] * self.stride[1])

    def batched(self, source: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """The ``product`` of a batch; a single image counts as a batch of one."""
        if source.dim() == 3:
            return product(source.unsqueeze(0)).squeeze(0)
        return product(source)

    def prepare(self, source: Tensor) -> Tensor:
        return source.contiguous()

    def source_view(self, source: Tensor) -> kernels.View:
        sizes = self._out_size(source), self.kernel, self.stride, self.padding, self.dilation
        return kernels.image_view(source, *sizes)

    def target_view(self, target: Tensor) -> kernels.View:
        return kernels.image_view(target, (target.shape[2], target.shape[3]))

    def new_target(self, source: Tensor, features: int) -> Tensor:
        return source.new_empty(source.shape[0], features, *self._out_size(source))

    def new_source_gradient(self, source: Tensor) -> Tensor:
        return torch.zeros_like(source, memory_format=torch.contiguous_format)

    def dense(self, source: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(source, weight, bias, self.stride, self.padding, self.dilation)

    def source_gradient(self, source: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
        sizes = self.stride, self.padding, self.dilation
        return conv2d_input(source.shape, weight, gradient, *sizes)

    def weight_gradient(self, source: Tensor, gradient: Tensor, shape: torch.Size) -> Tensor:
        return conv2d_weight(source, shape, gradient, self.stride, self.padding, self.dilation)

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        return gradient.sum((0, 2, 3))


def geometry_of(sizes: Sequence[int]) -> Rows | Windows:
    """The geometry that has these ``sizes``."""
    if len(sizes) < 2:
        return Rows(bool(sizes))
    first, second, third, fourth = (tuple(sizes[i : i + 2]) for i in (0, 2, 4, 6))
    return Windows(first, second, third, fourth)  # type: ignore[arg-type]


def product_dtype(weight: Tensor) -> torch.dtype:
    """The type of a layer's output, which autocast decides where it is on."""
    return torch.bfloat16 if torch.is_autocast_enabled("cpu") else weight.dtype


def _report(part: str, structure: kernels.Structure, tokens: int, *, dense: bool = False) -> None:
    """Tells listening ledgers of one product, at 2 FLOPs per multiply-add."""
    all_flops = 2 * tokens * structure.rows * structure.columns
    executed = all_flops if dense else 2 * tokens * structure.num_nonzero
    record(part, dense_flops=all_flops, executed_flops=executed)


class Product(NamedTuple):
    """A layer's product by the kernels.

    Attributes:
        geometry: How tokens lie in the input.
        structures: Of the layer's mask.
        dtype: Of the result. Sums are float32, and each result is rounded once.
    """

    geometry: Rows | Windows
    structures: Structures
    dtype: torch.dtype

    @property
    def is_half(self) -> bool:
        """Whether the kernels multiply in bfloat16: it is asked for, and the layer takes it."""
        return self.dtype is torch.bfloat16 and self.geometry.takes_half


def multiply(source: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
    """The output of a layer, by the kernels.

    Args:
        source: The layer's input, prepared by its geometry.
        weight: Dense, of which the unmasked part counts, or its unmasked numbers alone.
        bias: Of the output's features, or None.
    """
    geometry, forward = product.geometry, product.structures.forward
    numbers = source if product.is_half else source.float()
    target = geometry.new_target(numbers, forward.rows)
    view = geometry.source_view(numbers)
    bias = None if bias is None else bias.float().contiguous()
    forward.multiply(weight.contiguous(), view, geometry.target_view(target), bias)
    _report("forward", forward, view.tokens)
    return target.to(product.dtype)


def gradients(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor,
    product: Product,
    *,
    needs: Sequence[bool],
    dense: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `multiply`'s input, weight and bias, as far as they are needed.

    ``source``, prepared, to ``product`` are those that `multiply` was given.

    Args:
        needs: Which of the three are needed.
        dense: Whether the gradient of masked weights is needed, too.
    """
    geometry, structures, _ = product
    needs_source, needs_weight, needs_bias = needs
    dense = needs_weight and dense
    gradient = geometry.prepare(gradient)
    if not product.is_half:
        source, gradient = source.float(), gradient.float()
    source_gradient = geometry.new_source_gradient(source) if needs_source else None
    view = None if source_gradient is None else geometry.source_view(source_gradient)
    source_view, target_view = geometry.source_view(source), geometry.target_view(gradient)
    weight_gradient = bias_gradient = None
    forward, backward, weight = structures.forward, structures.backward, weight.contiguous()
    if needs_weight and not dense:
        if needs_bias:
            bias_gradient = gradient.new_empty(forward.rows, dtype=torch.float32)
        views = source_view, target_view, view
        weight_gradient = kernels.gradients(forward, backward, weight, *views, bias_gradient)
    elif view is not None:
        backward.multiply(weight, target_view, view)
    if needs_source:
        _report("input_gradient", forward, source_view.tokens)
    if needs_weight:
        _report("weight_gradient", forward, source_view.tokens, dense=dense)
    if dense:
        with _disable_current_modes():  # a ledger cannot assign these operators to a layer
            weight_gradient = geometry.weight_gradient(source, gradient, weight.shape)
    if needs_bias and bias_gradient is None:
        bias_gradient = geometry.bias_gradient(gradient)
    return source_gradient, weight_gradient, bias_gradient


class SkipProduct(torch.autograd.Function):
    """The product of a layer and its gradients, over the unmasked weights only.

    Products in bfloat16 are summed in float32, and each result is rounded once. Where the processor
    or the geometry takes no bfloat16, they are products of float32.
    """

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, weight: Tensor, bias: Tensor | None, product: Product
    ) -> Tensor:
        ctx.dtypes = source.dtype, weight.dtype, None if bias is None else bias.dtype
        source = source.to(product.dtype) if product.is_half else source
        source = product.geometry.prepare(source)
        ctx.save_for_backward(source, weight)
        ctx.parameter, ctx.product = weight, product
        return multiply(source, weight, bias, product)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        batched, fault = torch._C._functorch, ""
        if torch.is_grad_enabled():
            fault = "have no second derivatives (create_graph=True)"
        if batched.is_legacy_batchedtensor(gradient) or batched.is_batchedtensor(gradient):
            fault = "take one gradient at a time, no batch (is_grads_batched, vectorize=True)"
        if fault:
            raise RuntimeError(
                f"the kernels {fault}; run the model itself, not its twin or a packed one"
            )
        dense, needs = wants_dense_gradient(ctx.parameter), ctx.needs_input_grad[:3]
        source, weight = ctx.saved_tensors
        found = gradients(gradient, source, weight, ctx.product, needs=needs, dense=dense)
        pairs = zip(found, ctx.dtypes)
        return (*(None if t is None else t.to(dtype) for t, dtype in pairs), None)
