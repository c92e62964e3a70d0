"""Cerebras CS-2: what is known of it was read in the press and in talks."""

from sparse_lib.simulation.spec import DeviceSpec, sparse_overhead

_ANANDTECH = "AnandTech 16626, table of the WSE-2 (2021)"
_HOT_CHIPS = "Lie, Hot Chips 34 (2022) and IEEE Micro 43(3), read in summaries"
_NEXT = "The Next Platform (2024-03-14)"
IO_SOURCE = "1.2 Tb/s of I/O per system; Argonne ALCF, tutorial on AI accelerators, SC24"
SPEEDUP_SOURCE = "Thangarasa et al., SPDF (UAI 2023), supplement figure 1, digitised"

MATMUL_SPEEDUP = {
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
"""1 / (1 - sparsity) to the measured speed-up of a 12k x 12k matrix product of GPT-3."""

SPEC = DeviceSpec(
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
    sparse_overhead=sparse_overhead(MATMUL_SPEEDUP),
    max_systems=192,
    sources={
        "peak_flops": f"850,000 cores ({_ANANDTECH}) x 4 FP16 multiply-adds ({_NEXT}) at 1.1 GHz "
        f"({_HOT_CHIPS})",
        "memory_bytes": _ANANDTECH,
        "memory_bandwidth": _ANANDTECH,
        "power_w": "its power supplies, an upper bound (the wafer takes 15 kW); press, 2021",
        "stream_bandwidth": IO_SOURCE,
        "sparse_overhead": f"least squares over all published points; {SPEEDUP_SOURCE}",
        "max_systems": "cerebras.net/product-cluster",
    },
    unverified=frozenset(
        {"peak_flops", "memory_bytes", "memory_bandwidth", "power_w", "max_systems"}
    ),
)
