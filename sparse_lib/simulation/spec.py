"""Facts of a device, and the cost of skipping zeros, fitted to a published curve."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator system, or the machine at hand.

    Attributes:
        name: Short name, for example ``"cs2"``.
        title: Name for people, with the exact variant.
        peak_flops: Dense FLOPs per second at ``precision``, 2 per multiply-add.
        precision: Number format of the peak.
        weight_bytes: Bytes of one weight value.
        memory_bytes: Memory next to the compute: SRAM of a wafer, HBM of a GPU.
        memory_bandwidth: Bytes per second of that memory.
        power_w: Power of the whole system under load.
        streams_weights: True if weights arrive from outside layer by layer and only activations
            stay, so ``stream_bandwidth`` bounds a layer.
        stream_bandwidth: Bytes per second into the system, 0 if weights stay.
        link_bandwidth: Bytes per second and direction to other systems, for exchanging gradients;
            0 where that is part of the streaming, or where there is one system.
        skips_zeros: True if masked weights cost (almost) no time.
        sparse_overhead: ``c`` of ``T(s) / T(0) = (1 - s) + c s``; 1 on devices that skip nothing.
        max_systems: Largest number of systems that train one model data-parallel.
        sources: Where each value comes from, by attribute.
        unverified: Attributes whose source is no document that states the value: assumptions,
            bounds, and values read second hand.
    """

    name: str
    title: str
    peak_flops: float
    precision: str
    weight_bytes: int
    memory_bytes: float
    memory_bandwidth: float
    power_w: float
    streams_weights: bool = False
    stream_bandwidth: float = 0.0
    link_bandwidth: float = 0.0
    skips_zeros: bool = False
    sparse_overhead: float = 1.0
    max_systems: int = 1
    sources: dict[str, str] = field(default_factory=dict)
    unverified: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("peak_flops", "weight_bytes", "memory_bytes", "memory_bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{self.name}: {name} is {getattr(self, name)}, but must be above 0"
                )

    def records(self) -> list[dict[str, object]]:
        """One row per fact: device, attribute, value, source, and whether it is verified."""
        return [
            {
                "device": self.title,
                "fact": name,
                "value": getattr(self, name),
                "verified": name not in self.unverified,
                "source": source,
            }
            for name, source in self.sources.items()
        ]


def sparse_overhead(speedups: dict[int, float]) -> float:
    """Fits ``c`` of ``T(s) / T(0) = (1 - s) + c s`` by least squares on the relative error.

    Speed-ups of a matrix product are by ``1 / (1 - s)``.
    """
    points = {1 - 1 / inverse: speedup for inverse, speedup in speedups.items() if inverse > 1}
    if not points:
        raise ValueError("no speed-up was given for 1/(1-s) > 1.")
    # Relative error of the predicted time: speedup * (1 - s + c s) - 1, linear in c.
    slopes = [v * s for s, v in points.items()]
    residues = [1 - v * (1 - s) for s, v in points.items()]
    return sum(a * b for a, b in zip(slopes, residues)) / sum(a * a for a in slopes)
