"""FLOPs of torch's operators, 2 per multiply-add: those of ``torch.utils.flop_counter``, and more.

Formulas take shapes in place of tensors, as torch's do. Beside operators that torch leaves out
there are convolutions' gradients, where torch's formula does not see groups, and attention's, where
it counts scores that a kernel computes again.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

Shape = tuple[int, ...]
aten = torch.ops.aten

_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def _product(a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(a) * (b[-1] if len(b) > 1 else 1)


def _batched_product(a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    """A sum over one element adds nothing up: the angles of rotary embeddings."""
    return _product(a, b) if a[-1] > 1 else 0


def _added_product(_: Shape, a: Shape, b: Shape, *__: Any, **___: Any) -> int:
    return _product(a, b)


def _recurrence(x: Shape, weight: Shape, recurrent: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(x[:-1]) * (math.prod(weight) + math.prod(recurrent))


def _linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * weight[0]


def _trilinear(
    a: Shape, b: Shape, c: Shape, da: Shape, db: Shape, dc: Shape, *_: Any, **__: Any
) -> int:
    """The product over all dimensions, of which each operand lacks some."""
    shapes = []
    for shape, missing in ((a, da), (b, db), (c, dc)):
        whole = list(shape)
        for dim in sorted(missing):
            whole.insert(dim, 1)
        shapes.append(whole)
    return 2 * math.prod(map(max, zip(*shapes, strict=True)))


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Both products of attention, full square: all of (batch, heads, tokens, head size)."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _convolution_backward(
    gradient: Shape, x: Shape, weight: Shape, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, needed: Shape, **_: Any,
) -> int:  # fmt: skip
    """Every weight once per output position (input, if transposed), for each gradient."""
    side = x if transposed else gradient
    return 2 * side[0] * math.prod(side[2:]) * math.prod(weight) * sum(map(bool, needed[:2]))


_OWN: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("mm", "mv", "dot", "_grouped_mm"), _product),
    "bmm": _batched_product,
    **dict.fromkeys(
        "addmm addmm_ _addmm_activation baddbmm baddbmm_ addbmm addbmm_ addmv addmv_".split(),
        _added_product,
    ),
    "linear": _linear,
    "_trilinear": _trilinear,
    "mkldnn_rnn_layer": _recurrence,
    "mkldnn_rnn_layer_backward": lambda *a, **k: 2 * _recurrence(*a, **k),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(_ATTENTION, _attention),
    **{f"{n}_backward": lambda _, *a, **k: 2 * _attention(*a, **k) for n in _ATTENTION},
}

FORMULAS: dict[Any, Callable[..., int]] = {
    getattr(aten, name): formula for name, formula in _OWN.items() if hasattr(aten, name)
}
"""By operator, for ``FlopCounterMode(custom_mapping=FORMULAS)``."""

ATTENTION = frozenset(getattr(aten, name) for name in _ATTENTION if hasattr(aten, name))
"""Fused attention, forward."""


def experts_formulas() -> dict[Any, Callable[..., int]]:
    """Formulas of transformers' operator for experts, which is there once that is imported."""
    if importlib.util.find_spec("transformers") is None or not hasattr(
        torch.ops.transformers, "grouped_mm_fallback"
    ):
        return {}
    own = torch.ops.transformers
    return {
        own.grouped_mm_fallback: _product,
        own.grouped_mm_fallback_backward: lambda *a, **k: 2 * _product(*a, **k),
    }


def flops_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int | None:
    """FLOPs of one ``OpOverloadPacket`` that ran, or None if it is not counted."""
    if operator in FORMULAS:
        return FORMULAS[operator](*tree_map(_shape, args))
    if operator in flop_registry:
        return flop_registry[operator](*args, **kwargs, out_val=out)
    return None


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def is_outer_product(operator: Any, args: tuple[Any, ...]) -> bool:
    """True for a matrix product that sums over one element."""
    return operator is aten.mm and args[0].shape[-1] == 1
