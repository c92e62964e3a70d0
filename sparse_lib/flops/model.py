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
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sparse_lib import tables
from sparse_lib.checks import check_fraction, check_integer
from sparse_lib.flops import trace
from sparse_lib.flops.formulas import ATTENTION, flops_of, is_outer_product
from sparse_lib.layers import LayerDescription, describe
from sparse_lib.masks.counts import num_nonzero


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """Dense forward cost of one weight, or of the weightless products of one module.

    Attributes:
        operation: Kind of the layer (``LayerDescription.kind``). That of products of activations,
            and their role, is ``"attention"`` in modules with a softmax of activations, else
            ``"product"``, as of Mamba's scan.
        weight_name: Full parameter name, None without a weight.
        tied_to: First name of a tied weight, else None.
        num_weights: Elements of the weight, 0 without one.
        dense_flops: Forward FLOPs without sparsity, for the whole batch.
        sparsified: True if the default filter would sparsify the weight.
        num_kept: Elements of its inputs that the backward pass needs, for the whole batch; an input
            shared with an earlier layer counts there. Attention keeps queries, keys and values (one
            of each per head), not its scores, as fused kernels do.
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

    def with_weights(self, count: int) -> int:
        """Forward FLOPs with ``count`` of its weights (also summed over steps)."""
        return self.dense_flops * count // max(self.num_weights, 1)

    def forward_flops(self, sparsity: Mapping[str, float] | None = None) -> int:
        """Forward FLOPs with the weights at the given sparsities."""
        value = self.sparsity(sparsity)
        if value == 0.0:
            return self.dense_flops
        return self.with_weights(num_nonzero(value, self.num_weights))

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

    ``layers`` are in the order of first use; ``weight_names`` are all under which the model knows
    them.
    """

    layers: tuple[LayerFlops, ...]
    batch_size: int
    weight_names: frozenset[str]

    def forward(self, sparsity: Mapping[str, float] | None = None) -> int:
        """Forward FLOPs of the batch, with sparsity by full parameter name; others are dense.

        Raises:
            ValueError: If a name is no weight of the model, or a sparsity is not in [0, 1].
        """
        self._check(sparsity)
        return sum(layer.forward_flops(sparsity) for layer in self.layers)

    def parts(
        self, sparsity: Mapping[str, float] | None = None, *, dense_weight_grad: bool = False
    ) -> dict[str, int]:
        """FLOPs of a training step as ``forward``, ``input_gradient`` and ``weight_gradient``.

        ``sparsity`` is as of `forward`; ``dense_weight_grad`` is True on steps that compute the
        gradient of masked weights as well.
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

    def run(self, num_steps: int, work: Mapping[str, Any]) -> int:
        """FLOPs of training steps whose masks may have changed on the way, exactly.

        ``work`` by full parameter name is what the steps did with it, as
        `sparse_lib.core.metrics.Work`; other weights are dense.
        """
        total = 0
        for layer in self.layers:
            name = layer.weight_name if layer.weight_name in work else layer.tied_to
            if name is None or name not in work:
                total += 3 * layer.dense_flops * num_steps
                continue
            done = work[name]
            dense = layer.num_weights * done.dense_steps - done.dense_present
            total += layer.with_weights(3 * done.present + dense)
        return total

    def uniform(self, sparsity: float) -> dict[str, float]:
        """The mapping that gives every weight of the default filter the same sparsity."""
        return {
            layer.tied_to or layer.weight_name: sparsity
            for layer in self.layers
            if layer.sparsified and layer.weight_name is not None
        }

    def __str__(self) -> str:
        """A table of layers: what they are, weights, FLOPs of a forward pass, and their share."""
        rows = [("layer", "operation", "weights", "FLOPs", "share")]
        total = max(self.forward(), 1)
        for layer in self.layers:
            flops, share = f"{layer.dense_flops:,}", f"{layer.dense_flops / total:.1%}"
            name, weights = layer.name or "(model)", f"{layer.num_weights:,}"
            rows.append((name, layer.operation, weights, flops, share))
        all_weights = sum(layer.num_weights for layer in self.layers)
        rows.append(("total", "", f"{all_weights:,}", f"{self.forward():,}", "100.0%"))
        return tables.plain(rows, 2)

    def _check(self, sparsity: Mapping[str, float] | None) -> None:
        if not isinstance(sparsity, Mapping | None):
            raise TypeError(f"sparsity is by name of a weight, not {sparsity!r:.80}")
        for name, value in (sparsity or {}).items():
            if name not in self.weight_names:
                raise ValueError(f"sparsity names {name!r}, which is no weight of the model.")
            check_fraction(value, f"sparsity of {name!r}")


def count(
    model: nn.Module,
    inputs: Any = None,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> ModelFlops:
    """Count the dense forward FLOPs of every layer by one forward pass on meta tensors.

    No memory is allocated and no weight touched, so a model of 175 billion parameters on the meta
    device is counted in about a second. Module modes and random state are left as they were.
    ``print`` shows a table.

    Args:
        model: Any model whose work does not depend on the values of its input.
        inputs: What it is called with: a tensor, a tuple of positional or a mapping of keyword
            arguments. Only shapes and dtypes count.
        batch_size: Samples in the batch; by default the first dimension of the inputs. Without
            inputs they are made up: features (batch, inputs of the first layer), or as follows.
        sequence_length: Tokens per sample, for language models: (batch, tokens).
        image_size: Pixels per side, or (height, width), for vision models: (batch, channels,
            height, width).

    Raises:
        TypeError: If the model is no module, or a shape is given for the inputs.
        ValueError: If sizes are not positive, both a sequence length and an image size are given,
            there is nothing to tell the inputs from, or the model does not run on what was made up
            or without values.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {model!r}")
    if isinstance(inputs, tuple) and inputs and all(isinstance(size, int) for size in inputs):
        raise TypeError(f"inputs are tensors, not the shape {inputs}; give torch.empty{inputs}")
    made_up = inputs is None or (isinstance(inputs, Mapping) and not inputs)
    leaves = [] if made_up else tree_leaves(inputs)
    if leaves and not any(isinstance(leaf, Tensor) for leaf in leaves):
        raise TypeError(f"inputs are a tensor, or a tuple or mapping of them, not {inputs!r:.80}")
    args: tuple[Any, ...] = inputs if isinstance(inputs, tuple) else (inputs,)
    kwargs: dict[str, Any] = {}
    if made_up:
        if batch_size is None and sequence_length is None and image_size is None:
            raise ValueError("count_flops needs inputs, batch_size, sequence_length or image_size")
        size = 1 if batch_size is None else batch_size
        args = (example(model, size, sequence_length, image_size),)
    elif isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    args, kwargs = tree_map(trace.to_meta, (args, kwargs))
    descriptions = describe(model)
    with (
        torch.no_grad(),
        trace.on_meta(model, descriptions) as (call, weights),
        trace.module_stack(model) as stack,
    ):
        tracer = _Tracer(trace.WeightIndex(weights, (args, kwargs)), stack)
        try:
            with tracer:
                call(args, kwargs)
        except Exception as error:
            why = str(error).partition("\n")[0]
            if isinstance(error, NotImplementedError):
                raise ValueError(
                    "the work of this model depends on the values of its input, which count_flops "
                    f"does not compute; count a real call within sl.device.Ledger() ({why})"
                ) from error
            if not made_up:
                raise
            raise ValueError(
                f"count_flops cannot tell what this model takes; give it inputs: it does not "
                f"run on a made-up one of shape {tuple(args[0].shape)} ({why})"
            ) from error
    if batch_size is None:
        tensors = (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim())
        batch_size = next((t.shape[0] for t in tensors), 1)
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    names |= {d.weight_name for d in descriptions}
    return ModelFlops(tuple(_layers(tracer, descriptions)), batch_size, frozenset(names))


def example(
    model: nn.Module,
    batch_size: int,
    sequence_length: int | None,
    image_size: int | tuple[int, int] | None,
) -> Tensor:
    """A meta tensor of the shape and type that the first layer of the model takes."""
    if sequence_length is not None and image_size is not None:
        raise ValueError("count takes sequence_length or image_size, not both.")
    given: Any = () if image_size is None else image_size
    sides = tuple(given) if isinstance(given, tuple | list) else (given, given)
    sizes = [("batch_size", batch_size), ("sequence_length", sequence_length)]
    for key, size in sizes + [("image_size", side) for side in sides]:
        if size is not None and not 1 <= check_integer(size, key, 1) < 2**31:
            raise ValueError(f"{key} is {size}; it must be below 2**31")
    # Parameters of no known layer may be used anywhere.
    layers = [layer for layer in describe(model) if layer.layout is not None]
    matmuls = [layer for layer in layers if layer.is_matmul]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if sides:
        convolutions = [layer for layer in matmuls if len(layer.weight_shape) == 2 + len(sides)]
        if convolutions:
            channels = convolutions[0].weight_shape[1] * convolutions[0].groups
        elif matmuls and matmuls[0].fan_in % math.prod(sides) == 0:
            channels = matmuls[0].fan_in // math.prod(sides)  # pixels, flattened
        else:
            raise ValueError(f"count found no layer that takes images of {image_size} pixels.")
        return torch.empty(batch_size, channels, *sides, dtype=dtype, device="meta")
    if any(layer.kind == "embedding" for layer in layers) and sequence_length is not None:
        return torch.empty(batch_size, sequence_length, dtype=torch.long, device="meta")
    if not matmuls:
        raise ValueError("count found no layer with weights to multiply by; give inputs")
    rows = (batch_size,) if sequence_length is None else (batch_size, sequence_length)
    return torch.empty(*rows, matmuls[0].fan_in, dtype=dtype, device="meta")


def gpt_training_step(
    *, num_layers: int, hidden_size: int, vocab_size: int, sequence_length: int, sparsity: float = 0
) -> float:
    """Training FLOPs per sequence of a GPT, by formula (SPDF supplement, table 2).

    ``6 T (1-s) 12 L d^2 + 12 L T^2 d + 6 T V d``: block weights, attention, output head.
    """
    block = 12 * num_layers * hidden_size**2 * (1 - sparsity)
    attention = 12 * num_layers * sequence_length**2 * hidden_size
    return 6 * sequence_length * (block + vocab_size * hidden_size) + attention


class _Tracer(TorchDispatchMode):
    """Sums forward FLOPs and kept inputs by (weight name, "") or (None, module path)."""

    def __init__(self, index: trace.WeightIndex, stack: list[str]) -> None:
        super().__init__()
        self.index, self.stack = index, stack
        self.flops = Counter[tuple[str | None, str]]()
        self.kept = Counter[tuple[str | None, str]]()
        # Held, since a new tensor must not take the address of a dead one; they hold no memory.
        self._inputs: dict[int, Tensor] = {}
        self._num_products = Counter[str]()
        self.attending = set[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, operator = func._schema.name, func._overloadpacket
        if name == "aten::_local_scalar_dense":
            # Meta tensors have no values. A check is answered, as transformers asks whether the
            # batch is one unpacked sequence; a number would decide how much work there is.
            if args[0].dtype != torch.bool:
                raise NotImplementedError("its code reads a number of a tensor")
            return True
        if any(getattr(arg, "is_meta", False) for arg in tree_leaves((args, kwargs))):
            # Beside these, what the model makes on a device of its own.
            args, kwargs = tree_map(_on_meta, (args, kwargs))
        out = func(*args, **(kwargs or {}))
        if operator in ATTENTION or name.endswith("softmax") and not self.index.shares(args[0]):
            self.attending.add(self.stack[-1])
        flops = flops_of(operator, args, kwargs or {}, out)
        if flops is not None:
            self._book(operator, args, flops)
        self.index.follow(name, args, out, is_product=flops is not None)
        return out

    def _book(self, operator: Any, args: tuple[Any, ...], flops: int) -> None:
        found = self.index.find(args)
        if not found and is_outer_product(operator, args):
            return
        kept = self._num_new(bool(found), operator, args)
        for weight, share in found or ((None, 1.0),):
            key = (weight, "" if weight else self.stack[-1])
            self.flops[key] += round(share * flops)
            self.kept[key] += kept
            kept = 0

    def _num_new(self, has_weight: bool, operator: Any, args: tuple[Any, ...]) -> int:
        """Elements of the inputs that no earlier layer keeps."""
        inputs = [a for a in args if isinstance(a, Tensor) and a.dim() > 1]
        if not has_weight and operator in ATTENTION:
            return sum(a.numel() for a in inputs[:3])
        if not has_weight:
            # Products of activations come in pairs; the second takes the first's scores.
            number = self._num_products[self.stack[-1]]
            self._num_products[self.stack[-1]] += 1
            return sum(a.numel() for a in inputs[-1 if number % 2 else -2 :])
        new = [a for a in inputs if not self.index.shares(a)]
        new = [a for a in new if trace.storage_key(a) not in self._inputs]
        self._inputs.update((trace.storage_key(a), a) for a in new)
        return sum(a.numel() for a in new)


def _on_meta(value: Any) -> Any:
    return value if getattr(value, "is_meta", True) else trace.to_meta(value)


def _layers(tracer: _Tracer, descriptions: list[LayerDescription]) -> Iterator[LayerFlops]:
    by_weight = {d.weight_name: d for d in descriptions}
    tied = {d.tied_to for d in descriptions if d.tied_to and d.role in ("head", "embedding")}
    for (weight, module), dense_flops in tracer.flops.items():
        kept = tracer.kept[weight, module]
        if weight is None:
            kind = "attention" if module in tracer.attending else "product"
            yield LayerFlops(module, kind, None, None, kind, 0, dense_flops, False, kept)
            continue
        layer = by_weight[weight]
        yield LayerFlops(
            name=layer.name,
            operation=layer.kind,
            weight_name=weight,
            tied_to=layer.tied_to,
            role=layer.role,
            num_weights=layer.numel,
            dense_flops=dense_flops,
            sparsified=layer.dense_reason is None and weight not in tied,
            num_kept=kept,
        )
