"""Cerebras CS-3: as the CS-2 where nothing else was published."""

from dataclasses import replace

from sparse_lib.simulation.devices import cs2

_TOMS = "Tom's Hardware, launch of the WSE-3 (2024-03)"
_NEXT = "The Next Platform (2024-03-14)"

SPEC = replace(
    cs2.SPEC,
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
        "stream_bandwidth": cs2.IO_SOURCE,
        "sparse_overhead": f"assumed equal to the CS-2's; {cs2.SPEEDUP_SOURCE}",
        "max_systems": _TOMS,
    },
    unverified=frozenset(
        {"peak_flops", "memory_bytes", "power_w", "sparse_overhead", "max_systems"}
    ),
)
