"""NVIDIA A100 with 80 GB, which skips no unstructured zeros."""

from sparse_lib.simulation.spec import DeviceSpec

_A100 = "glennklockwood.com/garden/processors/A100, after NVIDIA's A100 data sheet"

SPEC = DeviceSpec(
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
        "memory_bandwidth": "thundercompute.com/blog/nvidia-a100-specs-full-guide, column SXM 80 "
        "GB",
        "power_w": f"the module's limit, host not included; {_A100}",
        "link_bandwidth": f"NVLink, per direction; {_A100}; more than 8 modules need a slower "
        "network, which is not simulated",
        "max_systems": "no limit known; a bound for the simulation",
    },
    unverified=frozenset({"max_systems"}),
)
