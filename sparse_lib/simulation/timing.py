"""Simulated training steps: time, energy, utilisation and memory of a model on a device.

A small analytic model, not a measurement, and everything it returns is labelled *simulated*:

- A layer at sparsity ``s`` takes ``(1 - s) + c s`` of its dense time on a device that skips zeros
  (``c`` fitted to the published CS-2 curve, `sparse_lib.simulation.spec`), else
  all of it. Nothing was published above 90% sparsity; beyond, ``extrapolated`` is set.
- The dense time is FLOPs over peak times an efficiency that you choose; 1 gives a lower bound.
- A layer can't be faster than its weights arrive. A wafer streams them in twice (forward and
  backward) while gradients stream out; other devices read and write them in their memory. Both
  overlap with the computation.
- A system that can't keep the activations of its share of the batch takes it in micro-batches, as
  few as fit, and needs the weights for each.
- With recomputation only the input of each block stays, and one block's other activations at a
  time; all products of the forward pass run twice, and need the weights a third time.
- Several systems split the batch (data parallel) and each sees all weights. Wafers' gradients are
  reduced on their way out; other devices exchange theirs around a ring, ``2 (n - 1) / n`` of them
  over each link, while the layer computes.
- Activations are those of `sparse_lib.flops.LayerFlops`; element-wise functions are taken to
  be computed again.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from sparse_lib.checks import check_integer
from sparse_lib.flops.model import LayerFlops, ModelFlops, count
from sparse_lib.layers import describe
from sparse_lib.masks import counts
from sparse_lib.simulation.devices import device_spec
from sparse_lib.simulation.spec import DeviceSpec

# The sparsest published point of the CS-2's speed-up curve.
MAX_PUBLISHED_SPARSITY = 0.9
# Mixed-precision Adam: weight 2, gradient 2, float32 copy and two moments 12 (ZeRO, Rajbhandari
# et al., 2020, section 3.1).
_STATE_BYTES_PER_WEIGHT = 16


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Simulated seconds of one layer in one training step, and what bounds it."""

    name: str
    operation: str
    sparsity: float
    compute_s: float
    transfer_s: float
    exchange_s: float
    flops: int

    @property
    def time_s(self) -> float:
        """Compute, transfer of weights and exchange of gradients overlap, so the longest."""
        return max(self.compute_s, self.transfer_s, self.exchange_s)

    @property
    def bound_by(self) -> str:
        """The longest part: ``"compute"``, ``"transfer"`` or ``"exchange"``."""
        kinds = ("compute", "transfer", "exchange")
        return max(kinds, key=lambda kind: getattr(self, f"{kind}_s"))


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated training step; the module says what it assumes.

    ``weight_csr_bytes`` are all weights once, sparse ones as CSR, and ``weight_dense_bytes``
    without sparsity; ``activation_bytes`` are the inputs of layers that one system keeps for the
    backward pass of a micro-batch, of which it takes ``num_micro_batches``. ``fits`` says whether
    one system holds what must stay on it for a single sample: the activations where weights are
    streamed, else weights and optimizer state (dense, mixed-precision Adam) too. ``extrapolated``
    is True if a weight is sparser than anything published.
    """

    device: DeviceSpec
    num_systems: int
    layers: tuple[LayerTime, ...]
    weight_csr_bytes: int
    weight_dense_bytes: int
    activation_bytes: int
    num_micro_batches: int
    recompute: bool
    fits: bool
    extrapolated: bool

    @property
    def step_s(self) -> float:
        """Seconds per training step, layers one after another."""
        return sum(layer.time_s for layer in self.layers)

    @property
    def flops(self) -> int:
        """FLOPs executed on all systems together, masked work left out where it is skipped."""
        return sum(layer.flops for layer in self.layers)

    @property
    def utilisation(self) -> float:
        """Executed FLOPs over what the systems could do in that time, in [0, 1]."""
        return self.flops / (self.step_s * self.device.peak_flops * self.num_systems)

    @property
    def energy_j(self) -> float:
        """Joules per step: power of the systems times the time; NaN where no power is known."""
        return self.step_s * (self.device.power_w or math.nan) * self.num_systems

    @property
    def label(self) -> str:
        """``"simulated"``, and whether that is beyond what was ever measured."""
        return "simulated" + (" (extrapolated beyond 90%)" if self.extrapolated else "")

    @property
    def bound_by(self) -> str:
        """The bound of most of the step: ``"compute"``, ``"transfer"`` or ``"exchange"``."""
        times = Counter[str]()
        for layer in self.layers:
            times[layer.bound_by] += layer.time_s  # type: ignore[assignment]
        return max(times, key=lambda name: times[name])

    def record(self) -> dict[str, Any]:
        """One row for a table."""
        keys = (
            *("num_systems", "step_s", "flops", "utilisation", "bound_by", "energy_j"),
            *("weight_dense_bytes", "weight_csr_bytes", "activation_bytes", "num_micro_batches"),
            *("recompute", "fits"),
        )
        own = {key: getattr(self, key) for key in keys}
        return {"label": self.label, "device": self.device.name, **own}


def simulate(
    model: nn.Module,
    device: str | DeviceSpec,
    *,
    batch_size: int,
    sequence_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    sparsity: Mapping[str, float] | float | None = None,
    dense_weight_grad: bool = False,
    num_systems: int = 1,
    efficiency: float = 1.0,
    recompute: bool | None = None,
    flops: ModelFlops | None = None,
) -> Simulation:
    """Simulates one training step. Only shapes of the model are read; it may be on the meta device.

    Args:
        device: A name (``"cs2"``, ``"cs3"``, ``"h100"``, ``"a100"``, ``"host"``) or a spec.
        batch_size: Samples per step over all systems.
        sequence_length: Tokens per sample, for language models.
        image_size: Pixels per side, or (height, width), for vision models.
        sparsity: Sparsity by full parameter name, or one number for the default filter; that of
            the model's masks if None.
        dense_weight_grad: True for a step that computes masked weights' gradients as well.
        num_systems: Systems that split the batch.
        efficiency: Share of the peak that dense layers reach, in (0, 1].
        recompute: Whether blocks keep their input only; None takes what is faster and fits.
        flops: What ``count`` returned for these sizes, to simulate many cases of one model.

    Raises:
        ValueError: If the device is unknown, it can't be joined by so many systems, the efficiency
            is out of range, or ``flops`` are those of another batch size.
    """
    spec = device_spec(device)
    check_integer(batch_size, "batch_size", 1)
    if not 1 <= check_integer(num_systems, "num_systems", 1) <= spec.max_systems:
        raise ValueError(
            f"num_systems is {num_systems}; {spec.name} allows 1 to {spec.max_systems}."
        )
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency is {efficiency}; it must be in (0, 1].")
    if sparsity is not None and not isinstance(sparsity, Mapping | numbers.Real):
        raise TypeError(
            f"sparsity must be a number or a mapping from parameter names, not {sparsity!r}"
        )
    sizes: dict[str, Any] = {"sequence_length": sequence_length, "image_size": image_size}
    counted = flops or count(model, batch_size=batch_size, **sizes)
    if counted.batch_size != batch_size:
        raise ValueError(f"flops are of {counted.batch_size} samples, batch_size is {batch_size}")
    levels = _of_masks(model) if sparsity is None else sparsity
    levels = levels if isinstance(levels, Mapping) else counted.uniform(levels)
    counted.forward(levels)  # rejects names and values that are wrong
    if recompute is None:
        same: dict[str, Any] = {"batch_size": batch_size, "sparsity": levels, "flops": counted}
        same |= {"num_systems": num_systems, "efficiency": efficiency}
        same["dense_weight_grad"] = dense_weight_grad
        options = [simulate(model, spec, recompute=choice, **same) for choice in (False, True)]
        return min(options, key=lambda option: (not option.fits, option.step_s))
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    resident = 0 if spec.streams_weights else num_weights * _STATE_BYTES_PER_WEIGHT
    share = -(-batch_size // num_systems)
    room = spec.memory_bytes - resident
    sample_bytes = _kept(counted, recompute=recompute) * spec.weight_bytes / batch_size
    num_fitting = int(room // sample_bytes) if sample_bytes else share
    micro_batch = min(share, max(num_fitting, 1))
    num_micro_batches = -(-share // micro_batch)
    shapes: dict[str | None, tuple[int, ...] | None] = {None: None}
    shapes |= {layer.weight_name: layer.weight_shape for layer in describe(model)}
    facts: dict[str, Any] = {
        "spec": spec,
        "seconds_per_flop": share / batch_size / (spec.peak_flops * efficiency),
        "num_systems": num_systems,
        "num_micro_batches": num_micro_batches,
        "num_forward": 2 if recompute else 1,
        "dense_weight_grad": dense_weight_grad,
    }
    layers = tuple(
        _layer_time(layer, shapes[layer.weight_name], layer.sparsity(levels), **facts)
        for layer in counted.layers
    )
    return Simulation(
        device=spec,
        num_systems=num_systems,
        layers=layers,
        weight_csr_bytes=weight_csr_bytes(model, levels, weight_bytes=spec.weight_bytes),
        weight_dense_bytes=num_weights * spec.weight_bytes,
        activation_bytes=round(sample_bytes * micro_batch),
        num_micro_batches=num_micro_batches,
        recompute=recompute,
        fits=num_fitting >= 1,
        extrapolated=spec.skips_zeros
        and any(layer.sparsity > MAX_PUBLISHED_SPARSITY for layer in layers),
    )


def _of_masks(model: nn.Module) -> dict[str, float]:
    """The sparsity of each mask of a model, by full name of its weight."""
    return {
        f"{path}.{name}".lstrip("."): counts.sparsity(mask)
        for path, module in model.named_modules()
        for name in module._parameters
        if (mask := module._buffers.get(f"{name}_mask")) is not None
    }


def relative_time(sparsity: float, overhead: float) -> float:
    """``T(s) / T(0) = (1 - s) + c s`` of one matrix product."""
    return (1 - sparsity) + overhead * sparsity


def weight_csr_bytes(
    model: nn.Module, sparsity: Mapping[str, float] | None, *, weight_bytes: int = 2
) -> int:
    """Bytes of all parameters, sparse ones as CSR: value and column per weight, row starts.

    Columns take 2 bytes up to 65,536 columns and 4 beyond; row starts take 4.
    """
    levels = sparsity or {}
    return sum(
        _weight_bytes(tuple(parameter.shape), levels.get(name, 0.0), weight_bytes)
        for name, parameter in model.named_parameters()
    )


def _weight_bytes(shape: tuple[int, ...], sparsity: float, weight_bytes: int) -> int:
    numel = math.prod(shape)
    if sparsity == 0 or len(shape) < 2:
        return numel * weight_bytes
    rows, columns = shape[0], numel // shape[0]
    index_bytes = 2 if columns <= 2**16 else 4
    return counts.num_nonzero(sparsity, numel) * (weight_bytes + index_bytes) + 4 * (rows + 1)


def _kept(flops: ModelFlops, *, recompute: bool) -> int:
    """Elements of activations that the backward pass of the batch needs at once.

    A block is what shares a name up to its first number, ``model.layers.3`` for example; its first
    layer keeps its input.
    """
    if not recompute:
        return sum(layer.num_kept for layer in flops.layers)
    inputs: dict[str, int] = {}
    blocks: dict[str, int] = {}
    for layer in flops.layers:
        parts = layer.name.split(".")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        block = ".".join(parts[: numbers[0] + 1] if numbers else parts)
        inputs.setdefault(block, layer.num_kept)
        blocks[block] = blocks.get(block, 0) + layer.num_kept
    return sum(inputs.values()) + max(blocks[name] - inputs[name] for name in blocks)


def _layer_time(
    layer: LayerFlops,
    shape: tuple[int, ...] | None,
    sparsity: float,
    *,
    spec: DeviceSpec,
    seconds_per_flop: float,
    num_systems: int,
    num_micro_batches: int,
    num_forward: int,
    dense_weight_grad: bool,
) -> LayerTime:
    """Forward, input gradient and weight gradient of one layer, in seconds."""
    skipped = sparsity if spec.skips_zeros else 0.0
    share = relative_time(skipped, spec.sparse_overhead)
    of_weight_grad = 1.0 if dense_weight_grad or not layer.num_weights else share
    shares = (1 + num_forward) * share + of_weight_grad
    executed = layer.dense_flops
    if skipped:
        executed = layer.with_weights(counts.num_nonzero(skipped, layer.num_weights))
    weight_grad = layer.dense_flops if dense_weight_grad else executed
    transfer_s = exchange_s = 0.0
    if shape is not None:
        weights = (1 + num_forward) * _weight_bytes(shape, skipped, spec.weight_bytes)
        gradients = layer.num_weights * spec.weight_bytes
        if skipped and not dense_weight_grad:
            gradients = counts.num_nonzero(skipped, layer.num_weights) * spec.weight_bytes
        if spec.streams_weights:
            transfer_s = max(weights, gradients) / spec.stream_bandwidth
        else:
            transfer_s = (weights + gradients) / spec.memory_bandwidth
        transfer_s *= num_micro_batches
        if num_systems > 1 and not spec.streams_weights:
            ring = 2 * (num_systems - 1) / num_systems
            exchange_s = ring * gradients / spec.link_bandwidth
    return LayerTime(
        name=layer.name,
        operation=layer.operation,
        sparsity=sparsity,
        compute_s=layer.dense_flops * shares * seconds_per_flop,
        transfer_s=transfer_s,
        exchange_s=exchange_s,
        flops=(1 + num_forward) * executed + weight_grad,
    )
