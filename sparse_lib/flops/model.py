"""FLOPs of a model, forward and training step, dense and sparse: the one place that defines them.

Conventions, the ones of RigL (Evci et al., 2020, appendix H) and SPDF (Thangarasa et al., 2023,
supplement) unless said otherwise:

- A multiply-add is 2 FLOPs. Linear layers, convolutions (zero padding included, as if every kernel
  position were used) and the two products of attention count. Biases, norms, activations, softmax,
  embedding look-ups, the loss and the optimizer do not, nor do outer products of activations (the
  angles of rotary embeddings).
- Causal attention counts the whole square of scores, as SPDF's ``12 L T^2 d`` does.
- The backward pass costs twice the forward pass: for a layer with weights one forward cost for the
  input gradient and one for the weight gradient; for attention two for its inputs' gradients. The
  first layer is charged an input gradient as well, though a model on images or other data that
  need no gradient never computes it; the ledger reports what truly ran.
- A weight with ``n`` elements at sparsity ``s`` costs ``num_nonzero(s, n) / n`` of dense in all
  three parts; with a dense weight gradient (RigL and GraNet at update steps) that part is dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparse_lib.flops.trace import (
    WeightIndex,
    all_parameters,
    example,
    module_stack,
    on_meta,
    shape_only,
    storage_key,
    to_meta,
)
from sparse_lib.layers import LayerDescription, default_filter, describe
from sparse_lib.masks.counts import num_nonzero

ATTENTION_FORWARD = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
    }
)
ATTENTION_BACKWARD = frozenset(f"{name}_backward" for name in ATTENTION_FORWARD)


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """Dense forward cost of one weight, or of the weightless products of one module.

    Attributes:
        name: Module path.
        operation: Kind of the layer (``LayerDescription.kind``), or ``"attention"`` for products
            of activations.
        weight_name: Full parameter name, None without a weight.
        tied_to: First name of a tied weight, else None.
        role: Role of the layer (``LayerDescription.role``), or ``"attention"``.
        num_weights: Elements of the weight, 0 without one.
        dense_flops: Forward FLOPs without sparsity, for the whole batch.
        sparsified: True if the default filter would sparsify the weight.
        num_kept: Elements of its inputs that the backward pass needs, for the whole batch; an input
            shared with an earlier layer counts there. Attention keeps queries, keys and values
            (one of each per head), not its scores, as fused kernels do.
    """

    name: str
    operation: str
    weight_name: str | None
    tied_to: str | None
    role: str
    num_weights: int
    dense_flops: int
    sparsified: bool
    num_kept: int

    @property
    def num_positions(self) -> int:
        """Rows (tokens, output pixels) that use each weight; 0 without a weight."""
        return self.dense_flops // (2 * self.num_weights) if self.num_weights else 0

    def forward_flops(self, sparsity: Mapping[str, float] | None = None) -> int:
        """Forward FLOPs with the weights at the given sparsities."""
        value = self.sparsity(sparsity)
        if value == 0.0:
            return self.dense_flops
        return 2 * self.num_positions * num_nonzero(value, self.num_weights)

    def sparsity(self, sparsity: Mapping[str, float] | None) -> float:
        """The sparsity that a mapping gives to this layer, looking through weight ties."""
        if not sparsity or self.weight_name is None:
            return 0.0
        if self.weight_name in sparsity:
            return float(sparsity[self.weight_name])
        return float(sparsity.get(self.tied_to, 0.0)) if self.tied_to else 0.0


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of one forward pass or training step of a model on one batch.

    Attributes:
        layers: Costs in the order of first use.
        batch_size: Samples in the batch.
        weight_names: All names under which the model knows its weights.
    """

    layers: tuple[LayerFlops, ...]
    batch_size: int
    weight_names: frozenset[str]

    def forward(self, sparsity: Mapping[str, float] | None = None) -> int:
        """Forward FLOPs of the batch.

        Args:
            sparsity: Sparsity by full parameter name; weights not named are dense.

        Raises:
            ValueError: If a name is no weight of the model, or a sparsity is not in [0, 1].
        """
        self._check(sparsity)
        return sum(layer.forward_flops(sparsity) for layer in self.layers)

    def parts(
        self, sparsity: Mapping[str, float] | None = None, *, dense_weight_grad: bool = False
    ) -> dict[str, int]:
        """FLOPs of a training step as ``forward``, ``input_gradient`` and ``weight_gradient``.

        Args:
            sparsity: Sparsity by full parameter name; weights not named are dense.
            dense_weight_grad: True on steps that compute the gradient of masked weights as well.
        """
        forward = self.forward(sparsity)
        attention = sum(layer.dense_flops for layer in self.layers if not layer.num_weights)
        weights = self.forward() if dense_weight_grad else forward
        return {
            "forward": forward,
            "input_gradient": forward + attention,
            "weight_gradient": weights - attention,
        }

    def training_step(
        self, sparsity: Mapping[str, float] | None = None, *, dense_weight_grad: bool = False
    ) -> int:
        """FLOPs of forward, input gradient and weight gradient together; see ``parts``."""
        return sum(self.parts(sparsity, dense_weight_grad=dense_weight_grad).values())

    def uniform(self, sparsity: float) -> dict[str, float]:
        """The mapping that gives every weight of the default filter the same sparsity."""
        return {
            layer.tied_to or layer.weight_name: sparsity
            for layer in self.layers
            if layer.sparsified and layer.weight_name is not None
        }

    def records(self, sparsity: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
        """One row per layer: names, dense and sparse forward FLOPs."""
        self._check(sparsity)
        return [
            {
                "name": layer.name,
                "operation": layer.operation,
                "role": layer.role,
                "weight_name": layer.weight_name,
                "num_weights": layer.num_weights,
                "num_positions": layer.num_positions,
                "num_kept": layer.num_kept,
                "sparsity": layer.sparsity(sparsity),
                "dense_flops": layer.dense_flops,
                "flops": layer.forward_flops(sparsity),
            }
            for layer in self.layers
        ]

    def _check(self, sparsity: Mapping[str, float] | None) -> None:
        for name, value in (sparsity or {}).items():
            if name not in self.weight_names:
                raise ValueError(f"sparsity names {name!r}, which is no weight of the model.")
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"sparsity of {name!r} is {value}; it must be in [0, 1].")


def count(
    model: nn.Module,
    *,
    batch_size: int,
    sequence_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    inputs: Mapping[str, torch.Tensor] | None = None,
) -> ModelFlops:
    """Counts the dense forward FLOPs of every layer by one forward pass on meta tensors.

    No memory is allocated and no weight touched, so a model of 175 billion parameters on the meta
    device is counted in well under a second. Module modes and random state are left as they were.

    Args:
        model: A model that takes token ids (B, T), images (B, C, H, W) or features (B, F) as its
            first argument.
        batch_size: Samples in the batch.
        sequence_length: Tokens per sample, for language models.
        image_size: Pixels per side, or (height, width), for vision models.
        inputs: Keyword arguments of the model instead of the above; only shapes and dtypes count,
            and ``batch_size`` is then for the record.

    Raises:
        TypeError: If the model is no module.
        ValueError: If sizes are not positive, or both a sequence length and an image size are
            given.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {model!r}")
    kwargs = dict(inputs) if inputs is not None else {}
    args = () if inputs else (example(model, batch_size, sequence_length, image_size),)
    descriptions = describe(model)
    with torch.no_grad(), on_meta(model, descriptions) as (call, index):
        tracer = _Tracer(index)
        with module_stack(model) as stack:
            tracer.stack = stack
            with tracer:
                call(args, {key: to_meta(value) for key, value in kwargs.items()})
    return ModelFlops(
        layers=tuple(_layers(tracer, descriptions)),
        batch_size=batch_size,
        weight_names=frozenset(name for name, _ in all_parameters(model)),
    )


def rigl_mean_step(f_sparse: float, f_dense: float, delta_t: float) -> float:
    """Mean FLOPs of a RigL training step (Evci et al., 2020, section 3 and appendix H).

    One step in ``delta_t + 1`` computes the dense weight gradient (and updates the masks).

    Args:
        f_sparse: Forward FLOPs of the sparse model.
        f_dense: Forward FLOPs of the dense model.
        delta_t: Steps between mask updates, at least 0.
    """
    return (3 * f_sparse * delta_t + 2 * f_sparse + f_dense) / (delta_t + 1)


def gpt_training_step(
    *, num_layers: int, hidden_size: int, vocab_size: int, sequence_length: int, sparsity: float = 0
) -> float:
    """Training FLOPs per sequence of a GPT, by formula (SPDF supplement, table 2).

    ``6 T (1-s) 12 L d^2 + 12 L T^2 d + 6 T V d``: block weights, attention, output head.
    """
    block = 12 * num_layers * hidden_size**2 * (1 - sparsity)
    attention = 12 * num_layers * sequence_length**2 * hidden_size
    return 6 * sequence_length * (block + vocab_size * hidden_size) + attention


_MATMULS = frozenset(
    f"aten::{name}"
    for name in (
        "mm addmm addmm_ _addmm_activation baddbmm baddbmm_ addbmm addbmm_ bmm mv addmv addmv_ dot "
        "linear"
    ).split()
)
_CONVOLUTIONS = frozenset({"aten::convolution", "aten::_convolution", "aten::cudnn_convolution"})


def is_contraction(name: str) -> bool:
    """True if ``contraction_flops`` counts the operator of this schema name."""
    return name in _MATMULS or name in _CONVOLUTIONS or name in ATTENTION_FORWARD


def contraction_flops(name: str, args: tuple[Any, ...], out: Any) -> int | None:
    """FLOPs of one dense forward operator, or None if it is not counted.

    Args:
        name: Schema name without overload, for example ``aten::addmm``.
        args: Its positional arguments.
        out: Its result.
    """
    if name == "aten::mm":
        return _matmul(args[0], args[1])
    name = name.removesuffix("_")  # in place
    if name in ("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::addbmm"):
        return _matmul(args[1], args[2])
    if name in ("aten::bmm", "aten::mv"):
        return _matmul(args[0], args[1])
    if name == "aten::addmv":
        return _matmul(args[1], args[2])
    if name == "aten::dot":
        return 2 * args[0].numel()
    if name == "aten::linear":
        return 2 * out.numel() * args[1].shape[-1]
    if name in _CONVOLUTIONS:
        transposed = bool(args[6]) if len(args) > 6 else False
        return convolution_flops(args[0], args[1], out, transposed=transposed)
    if name in ATTENTION_FORWARD:
        return attention_flops(args[0], args[1], args[2])
    return None


def convolution_flops(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, transposed: bool = False
) -> int:
    """FLOPs of a convolution: every weight once per output position (input, if transposed)."""
    side = x if transposed else out
    positions = side.shape[0] * math.prod(side.shape[2:])
    return 2 * positions * weight.numel()


def attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """FLOPs of the two products of attention; all of (B, heads, T, head size), full square."""
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (query.shape[-1] + value.shape[-1])


def _matmul(a: torch.Tensor, b: torch.Tensor) -> int:
    return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


class _Tracer(TorchDispatchMode):
    """Sums forward FLOPs and kept inputs by (weight name, "") or (None, module path)."""

    def __init__(self, index: WeightIndex) -> None:
        super().__init__()
        self.index = index
        self.stack: list[str] = [""]
        self.flops: dict[tuple[str | None, str], int] = {}
        self.kept: dict[tuple[str | None, str], int] = {}
        # Held, since a new tensor must not take the address of a dead one; they hold no memory.
        self._inputs: dict[int, torch.Tensor] = {}
        self._num_products: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name == "aten::_local_scalar_dense":
            # transformers checks whether the batch is one unpacked sequence; meta tensors have no
            # values.
            return True
        out = shape_only(name, args)
        if out is None:
            out = func(*args, **(kwargs or {}))
        flops = contraction_flops(name, args, out)
        if flops is None:
            self.index.follow(name, args, out)
            return out
        weight = self.index.find(args)
        if weight is not None or not is_outer_product(name, args):
            key = (weight, "" if weight else self.stack[-1])
            self.flops[key] = self.flops.get(key, 0) + flops
            self.kept[key] = self.kept.get(key, 0) + self._num_new(weight, name, args)
        return out

    def _num_new(self, weight: str | None, name: str, args: tuple[Any, ...]) -> int:
        """Elements of the inputs that no earlier layer keeps."""
        inputs = [a for a in args if isinstance(a, torch.Tensor) and a.dim() > 1]
        if weight is None and name in ATTENTION_FORWARD:
            return sum(a.numel() for a in inputs[:3])
        if weight is None:
            # Products of activations come in pairs; the second takes the first's scores.
            number = self._num_products.get(self.stack[-1], 0)
            self._num_products[self.stack[-1]] = number + 1
            return sum(a.numel() for a in inputs[-1 if number % 2 else -2 :])
        new = [
            a
            for a in inputs
            if self.index.name_of(a) is None and storage_key(a) not in self._inputs
        ]
        self._inputs.update((storage_key(a), a) for a in new)
        return sum(a.numel() for a in new)


def is_outer_product(name: str, args: tuple[Any, ...]) -> bool:
    """True for a matrix product that sums over one element, which adds nothing up."""
    if name in ("aten::mm", "aten::bmm"):
        return args[0].shape[-1] == 1
    return name == "aten::baddbmm" and args[1].shape[-1] == 1


def _layers(tracer: _Tracer, descriptions: list[LayerDescription]) -> Iterator[LayerFlops]:
    by_weight = {d.weight_name: d for d in descriptions}
    tied = {d.tied_to for d in descriptions if d.tied_to and d.role in ("head", "embedding")}
    for (weight, module), dense_flops in tracer.flops.items():
        kept = tracer.kept[weight, module]
        if weight is None:
            yield LayerFlops(
                module, "attention", None, None, "attention", 0, dense_flops, False, kept
            )
            continue
        layer = by_weight[weight]
        shape = torch.empty(layer.weight_shape, device="meta")
        yield LayerFlops(
            name=layer.name,
            operation=layer.kind,
            weight_name=weight,
            tied_to=layer.tied_to,
            role=layer.role,
            num_weights=layer.numel,
            dense_flops=dense_flops,
            sparsified=default_filter(weight, shape)
            and layer.role != "head"
            and weight not in tied,
            num_kept=kept,
        )
