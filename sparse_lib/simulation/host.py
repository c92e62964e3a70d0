"""The machine at hand as a device: the one whose facts are measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from sparse_lib.simulation import onednn
from sparse_lib.simulation.spec import DeviceSpec


def probe_host(*, duration_s: float = 5.0, power_w: float = 0.0) -> DeviceSpec:
    """Measures the CPU at hand for some seconds: float32 products, and copies beyond its caches.

    The products are torch's or, where these are faster, oneDNN's. CPUs don't tell their power, so
    energy is NaN unless you know it.
    """
    a = torch.ones(1024, 1024)
    out = torch.empty_like(a)
    products: list[Callable[[], object]] = [lambda: torch.mm(a, a, out=out)]
    if onednn.available():
        products.append(lambda: onednn.product(a, a))
    product_s = min(_fastest(work, duration_s / 2 / len(products)) for work in products)
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
        memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
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
    """Shortest CPU time of one call, over as many as fit: other processes only add time."""
    end, best = time.perf_counter() + duration_s, float("inf")
    while best == float("inf") or time.perf_counter() < end:
        start = time.process_time()
        work()
        best = min(best, (time.process_time() - start) / torch.get_num_threads())
    return best
