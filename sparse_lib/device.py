"""The device: a ledger of FLOPs, skipping execution on the CPU, and a timing model.

Three ideas in separate modules: `ledger` counts what a step did, `backend` runs masked layers
without their masked work, and `spec` with `wafer` predicts time, memory and energy (always
labelled *simulated*).
"""

from sparse_lib.execution.backend import Backend, backend, compile
from sparse_lib.execution.kernels import worth_skipping
from sparse_lib.flops.ledger import Ledger
from sparse_lib.simulation.facts import DeviceSpec, device_spec, probe_host
from sparse_lib.simulation.timing import Simulation, simulate

__all__ = [
    "Backend",
    "DeviceSpec",
    "Ledger",
    "Simulation",
    "backend",
    "compile",
    "device_spec",
    "probe_host",
    "simulate",
    "worth_skipping",
]
