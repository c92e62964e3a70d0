"""The machine at hand, what decides how long a step takes on it, and which timings may be compared.

Timings of one machine, threads, library versions and kernels included, may stand beside each other;
no others may. Each timing therefore carries the key of its machine. Nothing here names the host.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.digest import digest

CPUINFO = Path("/proc/cpuinfo")
#: Instructions that matter to matrix products, as Linux names them on x86 and on Arm.
ISA = (
    "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
#: Widest vectors of float arithmetic by an instruction set, in bits.
VECTOR_BITS = {"avx512f": 512, "avx": 256, "asimd": 128}
#: Key of timings whose machine is unknown, as in records of older versions.
NOT_RECORDED = "not recorded"
#: Key of timings of a run that an interruption moved to another machine.
SEVERAL = "several machines"


def facts(num_threads: int | None = None, *, device: str = "cpu") -> dict[str, Any]:
    """The facts that a record keeps of the machine.

    Args:
        num_threads: Threads that compute; None takes torch's setting.
        device: Torch device that the work runs on.

    Returns:
        ``processor`` (model name), ``vendor``, ``family``, ``model``, ``stepping``, ``isa`` (of
        `ISA`), ``vector_bits``, ``cores`` (logical), ``num_threads``, ``versions`` (torch, numpy,
        sparse_lib), ``torch_isa`` (what torch's kernels were chosen for), ``kernels`` (hash of the
        build and floats per vector of ours, or why there are none), and ``accelerator`` for a
        CUDA device. What the system does not say is None.
    """
    import torch

    num_threads = torch.get_num_threads() if num_threads is None else num_threads
    found = {**_processor(), "cores": os.cpu_count(), "num_threads": num_threads}
    isa = str(torch.backends.cpu.get_cpu_capability())
    found |= {"versions": _libraries(), "torch_isa": isa, "kernels": _kernels()}
    if device.startswith("cuda"):
        found["accelerator"] = torch.cuda.get_device_name(device)
    return found


def key(recorded: Mapping[str, Any] | None) -> str:
    """A machine's key: a digest of its facts, 12 hexadecimal digits.

    Args:
        recorded: What `facts` gathers; None where it was not recorded.

    Returns:
        The key; `NOT_RECORDED`, or `SEVERAL` for a run that has been on more than one.
    """
    if not recorded:
        return NOT_RECORDED
    return SEVERAL if recorded.get("earlier") else digest(dict(recorded))[:12]


def is_known(machine: Any) -> bool:
    """Whether timings with this key may be compared with others of the same key."""
    return isinstance(machine, str) and machine not in ("", NOT_RECORDED, SEVERAL)


def processor(recorded: Mapping[str, Any] | None, name: str = "") -> str:
    """A machine's processor in words, without commas: name, stepping, vectors, cores."""
    if not recorded:
        return f"{name} (the rest not recorded)".strip() if name else NOT_RECORDED
    numbers = [f"{part} {recorded[part]}" for part in ("family", "model", "stepping")
               if recorded.get(part) is not None]  # fmt: skip
    about = [" ".join([str(recorded.get("vendor") or ""), *numbers]).strip()]
    about.append(" ".join(recorded.get("isa") or []) or "vector instructions not known")
    if recorded.get("accelerator"):
        about.append(str(recorded["accelerator"]))
    cores = recorded.get("cores")
    about.append(f"{cores} {'core' if cores == 1 else 'cores'}")
    return f"{recorded['processor']} ({'; '.join(part for part in about if part)})"


def keep_memory() -> None:
    """Let glibc keep freed memory: a step's large tensors else cost page faults each time."""
    # Numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in malloc.h.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-3, -1):
            mallopt(option, 1 << 30)


def versions() -> dict[str, str]:
    """The versions that can change a result."""
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
