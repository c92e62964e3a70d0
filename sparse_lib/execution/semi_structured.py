"""2:4 sparsity on NVIDIA's sparse tensor cores, through torch's own `SparseSemiStructuredTensor`.

A mask with at most two of four consecutive inputs present is compressed once. At each step the
present weights alone are gathered into the compressed matrix, since the optimizer keeps the weight
dense; the forward product then runs sparse. So does the input's gradient where the mask is 2:4
along the outputs too (a transposable mask, Hubara et al. 2021), else it is that of masked dense.
The weight's gradient is a dense product, from which growth of masks reads what it needs.

CUTLASS kernels serve GPUs of compute capability 8; on others cuSPARSELt compresses at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

DTYPES = (torch.float16, torch.bfloat16)
#: What rows (outputs) and columns (inputs) must be multiples of: CUTLASS and cuSPARSELt.
ROWS, COLUMNS = 32, 64


def unavailable() -> str | None:
    """Why no product runs on sparse tensor cores here; None where they can."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA GPU, and 2:4 needs one"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"the GPU has compute capability {major}.{minor}, and 2:4 needs 8.0"
    if major > 8 and not torch.backends.cusparselt.is_available():
        return f"compute capability {major}.{minor} needs cuSPARSELt, which this torch lacks"
    return None


def is_two_of_four(mask: torch.Tensor) -> bool:
    """Whether at most two of each four consecutive entries of a row are present; (R, C), bool."""
    rows, columns = mask.shape
    return columns % 4 == 0 and bool((mask.view(rows, -1, 4).sum(2) <= 2).all())


def reason_for_dense(
    source: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype
) -> str | None:
    """Why a product runs masked dense; None where it can run sparse.

    Args:
        source: Input of the layer, (..., C).
        weight: (R, C), rows are outputs.
        mask: Of the same shape, bool.
        dtype: Number format of the product.
    """
    if type(source) is not torch.Tensor or not source.is_floating_point():
        return f"its input is a {type(source).__name__} of {source.dtype}"
    if dtype not in DTYPES:
        return f"its product is in {dtype}, and 2:4 needs float16 or bfloat16"
    if weight.dim() != 2 or weight.shape[0] % ROWS or weight.shape[1] % COLUMNS:
        shape = " x ".join(map(str, weight.shape))
        return f"its weight is {shape}, and 2:4 needs multiples of {ROWS} outputs, {COLUMNS} inputs"
    return None


@dataclass(frozen=True)
class Compressed:
    """A 2:4 mask as the sparse tensor cores read it, and where its weights are taken from.

    Attributes:
        mask: (R, C), bool.
        index: (R, C / 2), int64: columns of the two entries of each group of four, in order. A
            group with fewer present ones is filled up with absent ones, whose weights are zero.
        meta: Torch's encoding of these positions, in the layout of CUTLASS.
    """

    mask: torch.Tensor
    index: torch.Tensor
    meta: torch.Tensor

    @classmethod
    def of(cls, mask: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Compressed:
        """Compress a mask.

        Args:
            mask: (R, C), bool, at most two of four along C.
            dtype: Number format of the weights.
        """
        from torch.sparse._semi_structured_conversions import (
            sparse_semi_structured_from_dense_cutlass,
        )

        rows, columns = mask.shape
        groups = mask.view(rows, columns // 4, 4)
        # Present ones first, then the first absent ones: a stable sort keeps their order.
        order = groups.to(torch.int8).sort(dim=2, descending=True, stable=True).indices[..., :2]
        order = order.sort(dim=2).values
        filled = torch.zeros_like(groups).scatter_(2, order, True)
        _, meta = sparse_semi_structured_from_dense_cutlass(filled.view(rows, columns).to(dtype))
        starts = 4 * torch.arange(columns // 4, device=mask.device).unsqueeze(1)
        return cls(mask, (order + starts).view(rows, columns // 2), meta)

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """The weights of the compressed matrix, (R, C / 2), zero where a group was filled up."""
        present = self.mask.gather(1, self.index)
        return weight.gather(1, self.index).where(present, weight.new_zeros(()))


def sparse_matrix(weight: torch.Tensor, compressed: Compressed, dtype: torch.dtype) -> Any:
    """The masked weight as a matrix that multiplies on sparse tensor cores."""
    from torch.sparse import (
        SparseSemiStructuredTensorCUSPARSELT,
        SparseSemiStructuredTensorCUTLASS,
    )

    if torch.cuda.get_device_capability(weight.device)[0] > 8:
        masked = weight.where(compressed.mask, weight.new_zeros(())).to(dtype)
        return SparseSemiStructuredTensorCUSPARSELT.from_dense(masked)
    return SparseSemiStructuredTensorCUTLASS(
        weight.shape,
        packed=compressed.pack(weight).to(dtype),
        meta=compressed.meta,
        packed_t=None,
        meta_t=None,
        compressed_swizzled_bitmask=None,
    )


def product(
    source: torch.Tensor, weight: torch.Tensor, compressed: Compressed, dtype: torch.dtype
) -> torch.Tensor:
    """``source @ masked weight.T`` on sparse tensor cores; (N, C) and (R, C) give (N, R)."""
    return F.linear(source, sparse_matrix(weight, compressed, dtype))


class SemiStructuredLinear(torch.autograd.Function):
    """A linear layer under a 2:4 mask, and its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        source: torch.Tensor,
        weight: torch.Tensor,
        forward: Compressed,
        backward: Compressed | None,
        wants_dense_gradient: Callable[[], bool],
    ) -> torch.Tensor:
        ctx.save_for_backward(source, weight)
        ctx.forward, ctx.backward, ctx.wants = forward, backward, wants_dense_gradient
        return product(source, weight, forward, source.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        source, weight = ctx.saved_tensors
        of_source = of_weight = None
        gradient = gradient.contiguous()
        if ctx.needs_input_grad[0] and ctx.backward is not None:
            of_source = product(gradient, weight.T.contiguous(), ctx.backward, source.dtype)
        elif ctx.needs_input_grad[0]:
            zero = weight.new_zeros(())
            of_source = gradient @ weight.where(ctx.forward.mask, zero).to(source.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (gradient.T @ source).to(weight.dtype)
            if not ctx.wants():
                of_weight = of_weight.where(ctx.forward.mask, of_weight.new_zeros(()))
        return of_source, of_weight, None, None, None


class Masks:
    """The compressed forms of a layer's mask, made anew when it changes."""

    def __init__(self) -> None:
        self._known: tuple[torch.Tensor, int] | None = None
        self._forms: tuple[Compressed | None, Compressed | None] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # copies make their own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def forms(self, mask: torch.Tensor) -> tuple[Compressed | None, Compressed | None]:
        """Of the mask and, where it is transposable, of its transpose; None if not 2:4.

        Args:
            mask: (R, C), bool; a view is taken for the mask that it views.
        """
        base = mask if mask._base is None else mask._base
        if self._known is None or self._known[0] is not base or self._known[1] != base._version:
            forward = backward = None
            if is_two_of_four(mask.contiguous()):
                forward = Compressed.of(mask.contiguous())
                turned = mask.T.contiguous()
                rows, columns = turned.shape
                if rows % ROWS == 0 and columns % COLUMNS == 0 and is_two_of_four(turned):
                    backward = Compressed.of(turned)
            self._known, self._forms = (base, base._version), (forward, backward)
        return self._forms


def linear(
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    forms: tuple[Compressed, Compressed | None],
    dtype: torch.dtype,
    wants_dense_gradient: Callable[[], bool],
) -> torch.Tensor:
    """A linear layer under a 2:4 mask.

    Args:
        source: (..., C).
        weight: (R, C), dense, of any floating type.
        bias: (R,) or None.
        forms: Of its mask, from `Masks`.
        dtype: Number format of the products.
        wants_dense_gradient: Whether the backward pass is to give masked weights a gradient.
    """
    matrix = source.reshape(-1, source.shape[-1]).to(dtype)
    found = SemiStructuredLinear.apply(matrix, weight, *forms, wants_dense_gradient)
    if bias is not None:
        found = found + bias.to(dtype)
    return found.view(*source.shape[:-1], weight.shape[0])
