"""Which layers are worth skipping on a processor: a table of costs, never a clock."""

import os
from dataclasses import astuple, dataclass, replace

from sparse_lib.execution import kernels


@dataclass(frozen=True)
class Costs:
    """Costs of a training step through the kernels, at 1,024 tokens.

    Units of what masked dense execution of a large layer takes per weight, all of them above 0.

    Attributes:
        per_weight: An unmasked weight.
        per_feature: An input or output feature, whose tokens are packed.
        per_layer: A layer.
        half: How many times as fast as in float32 dense execution is in bfloat16.
        convolution: How many times as fast as linear layers dense convolutions are, per weight.
        per_window: How many times as much a feature of a window costs as `Images.packing` says.
    """

    per_weight: float
    per_feature: float
    per_layer: float
    half: float = 1.0
    convolution: float = 1.0
    per_window: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Costs":
        """From three to six numbers with commas, which must be above 0; ValueError otherwise."""
        try:
            costs = cls(*map(float, text.split(",")))
        except (TypeError, ValueError):
            costs = None
        if costs is None or not all(0 < number < float("inf") for number in astuple(costs)):
            raise ValueError(f"{COSTS_VARIABLE} must be three to six numbers above 0, got {text!r}")
        return costs


#: Environment variable that sets the costs: numbers with commas, as `Costs` has them.
COSTS_VARIABLE = "SPARSE_LIB_SKIP_COSTS"

# Zen 4 and processors without AVX-512, whose dense products are held back as the kernels are.
_COSTS = Costs(1.4, 12, 1000)
# Two units for 512-bit multiply-adds double the dense speed; measured on Intel family 6 model 207.
_COSTS_OF_WIDE_UNITS = Costs(1.6, 9, 1000)
# Zen 5 has two as well, but torch's MKL uses half of them, and its convolutions all; measured.
_COSTS_OF_ZEN_5 = Costs(0.67, 3, 1000, convolution=1.85, per_window=3.2)
# Not measured, hence high: dense torch may use wider vectors than the portable kernels.
_COSTS_OF_PORTABLE = Costs(4, 12, 1000)
# Speed of dense bfloat16. That of Zen 4 and 5 is measured, AMX is not, hence high; Intel's dot
# products without AMX are half as fast as float32 (measured).
_HALF_ON_ZEN_4, _HALF_ON_ZEN_5, _HALF_ON_AMX = 2.1, 4.1, 8.0
# What skipping gains by it where the kernels take bfloat16; measured on Zen 4 and 5.
_HALF_SKIPPING = 1.45


def default_costs() -> Costs:
    """The costs by which this machine decides what is worth skipping.

    They follow from the environment variable `SPARSE_LIB_SKIP_COSTS`, if it is set, or from the
    processor's vendor, family and vector width by a table; never from a clock, since a layer that
    skips rounds otherwise than a dense one, and a run must be repeatable.
    """
    if text := os.environ.get(COSTS_VARIABLE):
        return Costs.parse(text)
    if kernels.unavailable():
        return _COSTS_OF_PORTABLE
    lanes, (vendor, family) = kernels.num_lanes(), kernels.processor()
    zen = {25: 4, 26: 5}.get(family) if vendor == "AuthenticAMD" else None
    if lanes < 8:
        costs = _COSTS_OF_PORTABLE
    elif lanes == 16 and zen == 5:
        costs = _COSTS_OF_ZEN_5
    else:
        costs = _COSTS if lanes == 8 or zen == 4 else _COSTS_OF_WIDE_UNITS
    units = kernels.library().half_units()
    on_amd = (_HALF_ON_ZEN_5 if zen == 5 else _HALF_ON_ZEN_4) if vendor == "AuthenticAMD" else 1.0
    return replace(costs, half=_HALF_ON_AMX if units & 2 else on_amd if units else 1.0)


@dataclass(frozen=True)
class Images:
    """The images whose windows are a convolution's tokens; they change the cost of both executions.

    Channels are of the input, the width is that of the output in windows, and the stride the
    product of both strides.
    """

    channels: int
    width: int
    stride: int = 1

    def packing(self) -> float:
        """Cost of a window's feature relative to a row's; measured on Zen 4."""
        return 1.4 * (1 + 8 / self.width) * (1 + 0.3 * (self.stride - 1))

    def dense(self, out_features: int, num_weights: int) -> float:
        """Time of torch per weight relative to a large layer's; measured on Zen 4."""
        return 1 + 40 * (self.channels * self.stride + out_features) / num_weights


def worth_skipping(
    out_features: int,
    in_features: int,
    sparsity: float,
    *,
    images: Images | None = None,
    half: bool = False,
    multiplies_half: bool = False,
    costs: Costs | None = None,
) -> bool:
    """Whether skipping is expected to beat masked dense execution of a layer, on this machine.

    The estimate depends on nothing but its arguments, the processor's kind and whether the kernels
    are available, so a run may be decided by it reproducibly. A layer of 512 x 512 gains from a
    sparsity of about 0.32 on with AVX2 or on Zen 4 and from 0.40 on where dense torch has two
    512-bit units, one of 128 x 128 from 0.46 or 0.51, tiny ones hardly ever; on Zen 5, whose linear
    layers torch runs at half the processor's speed, both at any sparsity.

    Args:
        out_features: Rows of the weight.
        in_features: Its columns; for a convolution, input channels times the kernel's area.
        sparsity: Fraction of zeros in [0, 1].
        images: Of a convolution: what its windows lie in.
        half: Whether the dense execution would be in bfloat16.
        multiplies_half: Whether skipping would be so as well: see `takes_half`.
        costs: Those of another processor; `default_costs()` if None.
    """
    if kernels.unavailable() is not None:
        return False
    costs = costs or default_costs()
    num_weights = out_features * in_features
    window = images.packing() * costs.per_window if images else 1
    packing = costs.per_feature * window * (out_features + in_features) + costs.per_layer
    cost = costs.per_weight * (1 - sparsity) * num_weights + packing
    if half:
        cost *= costs.half / (_HALF_SKIPPING if multiplies_half else 1)
    elif images:
        cost *= costs.convolution
    dense = images.dense(out_features, num_weights) if images and num_weights else 1
    return cost < num_weights * dense
