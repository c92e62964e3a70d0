"""The machine at hand: what decides how long a step takes on it; nothing here names the host."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
#: Instructions that matter to matrix products, as Linux names them on x86 and on Arm.
ISA = (
    "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
#: Widest vectors of float arithmetic by an instruction set, in bits.
VECTOR_BITS = {"avx512f": 512, "avx": 256, "asimd": 128}


def facts(num_threads: int | None = None, *, device: str = "cpu") -> dict[str, Any]:
    """Return what a record keeps of the machine.

    Args:
        num_threads: Threads that compute; None takes torch's setting.
        device: Torch device that the work runs on.

    Returns:
        ``processor`` (model name), ``vendor``, ``family``, ``model``, ``stepping``, ``isa`` (of
        `ISA`), ``vector_bits``, ``cores`` (logical), ``num_threads``, ``versions`` (torch, numpy,
        sparse_lib), ``torch_isa`` (what torch's kernels were chosen for), ``kernels`` (hash of the
        build and floats per vector of ours, or why there are none), and ``accelerator`` for a
        device other than the processor. What the system does not say is None.
    """
    import torch

    num_threads = torch.get_num_threads() if num_threads is None else num_threads
    found = {**_processor(), "cores": os.cpu_count(), "num_threads": num_threads}
    isa = str(torch.backends.cpu.get_cpu_capability())
    found |= {"versions": _libraries(), "torch_isa": isa, "kernels": _kernels()}
    if not device.startswith("cpu"):
        found["accelerator"] = torch.cuda.get_device_name(device)
    return found


def keep_memory() -> None:
    """Let glibc keep freed memory: a step's large tensors else cost page faults each time."""
    # Numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in malloc.h.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-3, -1):
            mallopt(option, 1 << 30)


def versions() -> dict[str, str]:
    """Return the versions that can change a result."""
    return {
        "python": platform.python_version(),
        "transformers": version("transformers"),
        **_libraries(),
    }


def _processor() -> dict[str, Any]:
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(said.get("flags", said.get("Features", "")).split())
    isa = [name for name in ISA if name in flags]
    return {
        "processor": said.get("model name") or platform.processor() or platform.machine(),
        "vendor": said.get("vendor_id", said.get("CPU implementer")),
        "family": _number(said.get("cpu family", said.get("CPU architecture"))),
        "model": _number(said.get("model", said.get("CPU part"))),
        "stepping": _number(said.get("stepping", said.get("CPU revision"))),
        "isa": isa,
        "vector_bits": next((bits for name, bits in VECTOR_BITS.items() if name in isa), None),
    }


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def _libraries() -> dict[str, str]:
    library = importlib.import_module("sparse_lib")
    return {"torch": version("torch"), "numpy": version("numpy"), "sparse_lib": library.__version__}


def _kernels() -> dict[str, Any]:
    # By name: how a layer is executed is no part of what a run's result depends on.
    kernels = importlib.import_module("sparse_lib.execution.kernels")
    why = kernels.unavailable()
    if why is not None:
        return {"build": None, "unavailable": why}
    return {"build": kernels.build_id(), "lanes": kernels.num_lanes()}
