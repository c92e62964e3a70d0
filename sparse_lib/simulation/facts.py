"""Facts about devices, each with its source. Nothing here is measured unless it says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

_ANANDTECH = "AnandTech 16626, table of the WSE-2 (2021)"
_HOT_CHIPS = "Lie, Hot Chips 34 (2022) and IEEE Micro 43(3), read in summaries"
_ALCF = "Argonne ALCF, tutorial on AI accelerators, SC24"
_TOMS = "Tom's Hardware, launch of the WSE-3 (2024-03)"
_NEXT = "The Next Platform (2024-03-14)"
_CLUSTER = "cerebras.net/product-cluster"
_H100 = "glennklockwood.com/garden/processors/h100, after NVIDIA's H100 white paper and data sheet"
_H100_MEMORY = "exxactcorp.com/blog/HPC/NVIDIA-H100, table of the SXM5 module"
_A100 = "glennklockwood.com/garden/processors/A100, after NVIDIA's A100 data sheet"
_A100_MEMORY = "thundercompute.com/blog/nvidia-a100-specs-full-guide, column SXM 80 GB"
_NO_LIMIT = "no limit known; a bound for the simulation"
_SPDF = "Thangarasa et al., SPDF (UAI 2023), supplement figure 1, digitised"

# 1 / (1 - sparsity): measured speed-up of a 12k x 12k matrix product of GPT-3 on a CS-2.
CS2_MATMUL_SPEEDUP = {
    1: 1.00,
    2: 1.97,
    3: 2.88,
    4: 3.80,
    5: 4.63,
    6: 5.46,
    7: 6.23,
    8: 7.01,
    9: 7.68,
    10: 8.36,
}


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator system, or the machine at hand.

    Attributes:
        name: Short name, for example ``"cs2"``.
        title: Name for people.
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


def sparse_overhead(
    speedups: dict[int, float] | None = None, *, max_inverse_density: float = 5
) -> float:
    """Fits ``c`` of ``T(s) / T(0) = (1 - s) + c s`` by least squares on the relative error.

    Args:
        speedups: Measured speed-up by ``1 / (1 - s)``; the published CS-2 points by default.
        max_inverse_density: Points beyond it are left out, to be predicted instead.

    Raises:
        ValueError: If no point with sparsity above 0 is left.
    """
    points = {
        1 - 1 / inverse: speedup
        for inverse, speedup in (speedups or CS2_MATMUL_SPEEDUP).items()
        if 1 < inverse <= max_inverse_density
    }
    if not points:
        raise ValueError(f"no speed-up was given for 1 < 1/(1-s) <= {max_inverse_density}.")
    # Relative error of the predicted time: speedup * (1 - s + c s) - 1, linear in c.
    slopes = [v * s for s, v in points.items()]
    residues = [1 - v * (1 - s) for s, v in points.items()]
    return sum(a * b for a, b in zip(slopes, residues)) / sum(a * a for a in slopes)


def validate_overhead(*, max_inverse_density: float = 5) -> list[dict[str, float | bool]]:
    """Published and modelled speed-up at each point; ``fitted`` tells the fit from prediction."""
    c = sparse_overhead(max_inverse_density=max_inverse_density)
    rows: list[dict[str, float | bool]] = []
    for inverse, measured in CS2_MATMUL_SPEEDUP.items():
        modelled = 1 / (1 / inverse + c * (1 - 1 / inverse))
        rows.append(
            {
                "sparsity": 1 - 1 / inverse,
                "published": measured,
                "simulated": modelled,
                "relative_error": modelled / measured - 1,
                "fitted": inverse <= max_inverse_density,
            }
        )
    return rows


def device_spec(name: str | DeviceSpec) -> DeviceSpec:
    """A device by name; ``"host"`` is the machine at hand and takes some seconds to probe.

    Raises:
        ValueError: If there is no such device.
    """
    if isinstance(name, DeviceSpec):
        return name
    if name == "host":
        return probe_host()
    if name not in SPECS:
        raise ValueError(f"device is {name!r}; it must be one of {', '.join(SPECS)}, host.")
    return SPECS[name]


def probe_host(*, duration_s: float = 5.0, power_w: float = 0.0) -> DeviceSpec:
    """Measures the CPU at hand: float32 matrix products, and copies larger than its caches.

    Args:
        duration_s: Seconds for the whole probe.
        power_w: Power to charge; CPUs don't tell, so energy is NaN unless you know it.
    """
    a = torch.ones(1024, 1024)
    out = torch.empty_like(a)
    product_s = _fastest(lambda: torch.mm(a, a, out=out), duration_s / 2)
    source = torch.ones(16 * 2**20)
    target = torch.empty_like(source)
    copy_s = _fastest(lambda: target.copy_(source), duration_s / 2)
    measured = f"measured here with {torch.get_num_threads()} thread(s)"
    return DeviceSpec(
        name="host",
        title="This machine's CPU",
        peak_flops=2 * 1024**3 / product_s,
        precision="float32",
        weight_bytes=4,
        memory_bytes=float(_physical_memory()),
        memory_bandwidth=2 * source.numel() * source.element_size() / copy_s,
        power_w=power_w,
        sources={
            "peak_flops": measured,
            "memory_bytes": "the operating system",
            "memory_bandwidth": measured,
            "power_w": "given by the caller" if power_w else "unknown, so energy is not simulated",
            "max_systems": "this machine alone",
        },
        unverified=frozenset({"power_w"}),
    )


def _fastest(work: Callable[[], object], duration_s: float) -> float:
    """Shortest time of one call, over as many calls as fit: interruptions only add time.

    CPU time shared by the threads, so that other processes don't count.
    """
    end, best = time.perf_counter() + duration_s, float("inf")
    while best == float("inf") or time.perf_counter() < end:
        start = time.process_time()
        work()
        best = min(best, (time.process_time() - start) / torch.get_num_threads())
    return best


def _physical_memory() -> int:
    import os

    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_CS2 = DeviceSpec(
    name="cs2",
    title="Cerebras CS-2 (WSE-2)",
    peak_flops=850_000 * 4 * 2 * 1.1e9,
    precision="float16",
    weight_bytes=2,
    memory_bytes=40e9,
    memory_bandwidth=20e15,
    power_w=23_000,
    streams_weights=True,
    stream_bandwidth=1.2e12 / 8,
    skips_zeros=True,
    sparse_overhead=sparse_overhead(max_inverse_density=10),
    max_systems=192,
    sources={
        "peak_flops": f"850,000 cores ({_ANANDTECH}) x 4 FP16 multiply-adds ({_NEXT}) at 1.1 GHz "
        f"({_HOT_CHIPS})",
        "memory_bytes": _ANANDTECH,
        "memory_bandwidth": _ANANDTECH,
        "power_w": "its power supplies, an upper bound (the wafer takes 15 kW); press, 2021",
        "stream_bandwidth": f"1.2 Tb/s of I/O per system; {_ALCF}",
        "sparse_overhead": f"least squares over all published points; {_SPDF}",
        "max_systems": _CLUSTER,
    },
    unverified=frozenset(
        {"peak_flops", "memory_bytes", "memory_bandwidth", "power_w", "max_systems"}
    ),
)

SPECS: dict[str, DeviceSpec] = {
    "cs2": _CS2,
    "cs3": replace(
        _CS2,
        name="cs3",
        title="Cerebras CS-3 (WSE-3)",
        peak_flops=900_000 * 8 * 2 * 1.1e9,
        memory_bytes=44e9,
        memory_bandwidth=21e15,
        max_systems=2048,
        sources={
            "peak_flops": f"900,000 cores ({_TOMS}) x 8 FP16 multiply-adds ({_NEXT}) at the "
            "WSE-2's 1.1 GHz, an assumption; the advertised 125 PFLOP/s needs 8x sparsity",
            "memory_bytes": _TOMS,
            "memory_bandwidth": _NEXT,
            "power_w": f"as the CS-2; that the two are equal: {_TOMS}",
            "stream_bandwidth": f"1.2 Tb/s of I/O per system; {_ALCF}",
            "sparse_overhead": f"assumed equal to the CS-2's; {_SPDF}",
            "max_systems": _TOMS,
        },
        unverified=frozenset(
            {"peak_flops", "memory_bytes", "power_w", "sparse_overhead", "max_systems"}
        ),
    ),
    "h100": DeviceSpec(
        name="h100",
        title="NVIDIA H100 SXM5, dense",
        peak_flops=989.4e12,
        precision="bfloat16",
        weight_bytes=2,
        memory_bytes=80e9,
        memory_bandwidth=3.35e12,
        power_w=700,
        link_bandwidth=450e9,
        max_systems=1024,
        sources={
            "peak_flops": f"dense tensor-core rate; {_H100}",
            "memory_bytes": _H100,
            "memory_bandwidth": _H100_MEMORY,
            "power_w": f"the module's limit, host not included; {_H100_MEMORY}",
            "link_bandwidth": f"NVLink, half of 900 GB/s for both directions; {_H100}; more than 8 "
            "modules need a slower network, which is not simulated",
            "max_systems": _NO_LIMIT,
        },
        unverified=frozenset({"max_systems"}),
    ),
    "a100": DeviceSpec(
        name="a100",
        title="NVIDIA A100 80 GB SXM, dense",
        peak_flops=312e12,
        precision="bfloat16",
        weight_bytes=2,
        memory_bytes=80e9,
        memory_bandwidth=2.039e12,
        power_w=400,
        link_bandwidth=300e9,
        max_systems=1024,
        sources={
            "peak_flops": f"dense tensor-core rate; {_A100}",
            "memory_bytes": _A100,
            "memory_bandwidth": _A100_MEMORY,
            "power_w": f"the module's limit, host not included; {_A100}",
            "link_bandwidth": f"NVLink, per direction; {_A100}; more than 8 modules need a slower "
            "network, which is not simulated",
            "max_systems": _NO_LIMIT,
        },
        unverified=frozenset({"max_systems"}),
    ),
}
