"""The torch device of a run, by name, and the facts of a GPU."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import torch

from experiments.errors import UserError

DEVICE = r"auto|cpu|mps|cuda(:\d+)?"
DEVICES = "auto, cpu, mps, cuda or cuda:<number>"


def resolve(name: str) -> torch.device:
    """The device of a name.

    Raises:
        UserError: If the name has another form, or this machine or torch has no such device.
    """
    if not re.fullmatch(DEVICE, name):
        raise UserError(f"device is {name!r}, but must be {DEVICES}")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if num_gpus else "mps" if has_mps else "cpu"
    if name == "mps" and not has_mps:
        raise UserError(f"device is 'mps', but torch {torch.__version__} sees no Metal GPU here")
    if name.startswith("cuda"):
        number = int(name.partition(":")[2] or 0)
        if number >= num_gpus:
            raise UserError(
                f"device is {name!r} and would take GPU {number}, but torch "
                f"{torch.__version__} sees {num_gpus} CUDA devices here"
            )
        return torch.device("cuda", number)
    return torch.device(name)


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Name, memory, CUDA, driver and clocks of a GPU; nothing for other devices."""
    if device.type != "cuda":
        return {}
    known = torch.cuda.get_device_properties(device)
    facts = {"name": known.name, "memory_bytes": known.total_memory, "cuda": torch.version.cuda}
    keys = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem")
    command = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(
            [*command, "-i", str(device.index or 0)], capture_output=True, text=True, timeout=20
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    values = [value.strip() for value in said.strip().split(",")]
    if len(values) == len(keys):
        facts |= {key.replace(".", "_"): value for key, value in zip(keys, values, strict=True)}
    return facts
