"""The device: a ledger of FLOPs, skipping execution on the CPU, and a timing model.

What `sparse_lib.flops.ledger` counts of a step, `sparse_lib.execution` runs without its
masked work, and `sparse_lib.simulation` predicts in time, memory and energy (always labelled
*simulated*), under one name.
"""

from sparse_lib.execution.backend import Backend, backend, compile
from sparse_lib.execution.costs import Costs, default_costs, worth_skipping
from sparse_lib.execution.explain import explain
from sparse_lib.flops.ledger import Ledger
from sparse_lib.packed import PackedLayer, pack
from sparse_lib.simulation.devices import device_spec
from sparse_lib.simulation.host import probe_host
from sparse_lib.simulation.spec import DeviceSpec
from sparse_lib.simulation.timing import Simulation, simulate

__all__ = [
    "Backend",
    "Costs",
    "DeviceSpec",
    "Ledger",
    "PackedLayer",
    "Simulation",
    "backend",
    "compile",
    "default_costs",
    "device_spec",
    "explain",
    "pack",
    "probe_host",
    "simulate",
    "worth_skipping",
]
