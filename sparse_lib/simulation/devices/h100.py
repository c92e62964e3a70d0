"""NVIDIA H100, which skips no unstructured zeros."""

from sparse_lib.simulation.spec import DeviceSpec

_H100 = "glennklockwood.com/garden/processors/h100, after NVIDIA's H100 white paper and data sheet"
_MEMORY = "exxactcorp.com/blog/HPC/NVIDIA-H100, table of the SXM5 module"

SPEC = DeviceSpec(
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
        "memory_bandwidth": _MEMORY,
        "power_w": f"the module's limit, host not included; {_MEMORY}",
        "link_bandwidth": f"NVLink, half of 900 GB/s for both directions; {_H100}; more than 8 "
        "modules need a slower network, which is not simulated",
        "max_systems": "no limit known; a bound for the simulation",
    },
    unverified=frozenset({"max_systems"}),
)
