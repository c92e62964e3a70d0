"""Products of masked layers as operators of torch, which `torch.compile` keeps in its graphs.

A compiler reads no masks. So each operator finds out when it runs whether skipping is worth it, and
runs masked dense otherwise; masks may change between steps, and nothing is compiled again.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparse_lib.execution import products

if TYPE_CHECKING:
    from sparse_lib.execution.layers import Execution

# Graphs hold numbers, not objects.
_executions: "weakref.WeakValueDictionary[int, Execution]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def number_of(execution: "Execution") -> int:
    """A number by which a graph names the execution of a layer, as long as that lives."""
    number = next(_numbers)
    _executions[number] = execution
    return number


@torch.library.custom_op("sparse_lib::masked_product", mutates_args=())
def masked_product(
    source: Tensor,
    weight: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    number: int,
    sizes: Sequence[int],
    dtype: torch.dtype,
) -> Tensor:
    """The output of a masked layer.

    Args:
        source: `[..., inputs]`, or `[image, channel, height, width]`; float32 or bfloat16.
        weight: Of these types too, of which the unmasked part counts.
        mask: Bool, of the weight's shape.
        bias: `[outputs]`, or None.
        number: From `number_of`.
        sizes: The geometry's `sizes`.
        dtype: Of the output; an input of another type is float32 and stays so in the kernels.
    """
    geometry, execution = products.geometry_of(sizes), _executions[number]
    product = execution.product(source, mask, geometry, dtype)
    if product is not None:
        return products.multiply(geometry.prepare(source), weight, bias, product)
    with torch.autocast("cpu", enabled=False):
        masked = weight.where(mask, 0).to(dtype)
        bias = None if bias is None else bias.to(dtype)
        return geometry.dense(source.to(dtype), masked, bias).contiguous()


@masked_product.register_fake
def _(source, weight, mask, bias, number, sizes, dtype):
    geometry = products.geometry_of(sizes)
    return geometry.new_target(source, weight.shape[geometry.inputs_first]).to(dtype)


@torch.library.custom_op("sparse_lib::masked_product_gradients", mutates_args=())
def masked_product_gradients(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    number: int,
    sizes: Sequence[int],
    dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `masked_product`'s source, weight and bias; those not needed are empty."""
    geometry, execution = products.geometry_of(sizes), _executions[number]
    product = execution.product(source, mask, geometry, dtype)
    owned = execution.owner._parameters.get("weight")
    wants_dense = products.wants_dense_gradient(weight if owned is None else owned)
    found: tuple[Tensor | None, ...]
    if product is not None:
        prepared = geometry.prepare(source)
        found = products.gradients(
            gradient, prepared, weight, product, needs=needs, dense=wants_dense
        )
    else:
        of_source = of_weight = of_bias = None
        source, given = source.to(dtype), source
        with torch.autocast("cpu", enabled=False):
            if needs[0]:
                masked = weight.where(mask, 0).to(dtype)
                of_source = geometry.source_gradient(source, gradient, masked)
            if needs[1]:
                of_weight = geometry.weight_gradient(source, gradient, weight.shape)
                of_weight = of_weight if wants_dense else of_weight.where(mask, 0)
            if needs[2]:
                of_bias = geometry.bias_gradient(gradient)
        found, source = (of_source, of_weight, of_bias), given
    wanted = (source, weight, weight if bias is None else bias)
    one, two, three = (
        like.new_empty(0) if tensor is None else tensor.to(like.dtype).contiguous()
        for tensor, like in zip(found, wanted)
    )
    return one, two, three


@masked_product_gradients.register_fake
def _(gradient, source, weight, mask, bias, number, sizes, dtype, needs):
    wanted = (source, weight, weight if bias is None else bias)
    return tuple(like.new_empty(like.shape if needed else 0) for like, needed in zip(wanted, needs))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    source, weight, mask, bias, *ctx.rest = inputs
    ctx.save_for_backward(source, weight, mask, bias)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_source, of_weight, _, of_bias = ctx.needs_input_grad[:4]
    needs = [of_source, of_weight, of_bias]
    found = masked_product_gradients(gradient, *ctx.saved_tensors, *ctx.rest, needs)
    one, two, three = (tensor if needed else None for tensor, needed in zip(found, needs))
    return one, two, None, three, None, None, None


masked_product.register_autograd(_backward, setup_context=_setup_context)
