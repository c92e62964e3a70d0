"""Where and how a run computes: its device, its number format, its batches and masked layers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from typing import Any

import torch

from experiments.errors import UserError, refusals
from experiments.specs.cost import DEVICE, DEVICES
from sparse_lib import device as skipping
from sparse_lib.core.group import Group


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


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The context of a forward pass; weights and optimizer states stay float32."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def allow(precision: str) -> None:
    """Let this process use TensorFloat-32 for float32 where it is asked for, and nowhere else.

    By default torch uses it for convolutions, though not for matrix products.
    """
    asked = precision == "tf32"
    torch.set_float32_matmul_precision("high" if asked else "highest")
    torch.backends.cudnn.allow_tf32 = asked


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


def over(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to a batch, a tensor or a tuple of them."""
    return tuple(map(function, batch)) if isinstance(batch, tuple) else function(batch)


class Batches:
    """The samples that a run trains on, step by step.

    Args:
        make: ``make(step)`` is the batch, samples first.
        ahead: Whether a thread prepares the next step's batch; None does so for a GPU.
    """

    def __init__(
        self, make: Callable[[int], Any], *, device: torch.device, ahead: bool | None = None
    ) -> None:
        self.make, self.device = make, device
        self.ahead = device.type != "cpu" if ahead is None else ahead
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Any]] | None = None

    def prepared(self, step: int) -> Any:
        """The samples of a step, in pinned memory if a GPU is to read them."""
        batch = self.make(step)
        return over(batch, torch.Tensor.pin_memory) if self.device.type == "cuda" else batch

    def of(self, step: int) -> Any:
        """The batch of a step, on the device."""
        if not self.ahead:
            batch = self.prepared(step)
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
            known = self._next
            future = (
                known[1]
                if known is not None and known[0] == step
                else self._thread.submit(self.prepared, step)
            )
            batch = future.result()
            self._next = step + 1, self._thread.submit(self.prepared, step + 1)
        return over(batch, lambda part: part.to(self.device, non_blocking=True))

    def close(self) -> None:
        """Stop preparing."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = self._next = None


def choose(execution: str, sparsity: Group | None, level: float) -> str:
    """The execution of a run, given the requested one.

    Args:
        level: sparsity at its end, in [0, 1).

    Returns:
        ``execution``; ``dense`` for ``auto`` where no layer is worth skipping.
    """
    if execution != "auto" or sparsity is None:
        return execution
    for param in sparsity.sparse_params.values():
        rows = param.mask.shape[0]
        with refusals("execution is 'auto'"):
            columns = param.mask.numel() // rows
            if skipping.worth_skipping(rows, columns, max(param.sparsity, level)):
                return "auto"
    return "dense"


def skipping_runner(
    model: torch.nn.Module, execution: str, costs: tuple[float, ...] | None
) -> tuple[torch.nn.Module, tuple[float, ...]]:
    """A model whose masked layers skip: all of them, or with ``auto`` those that gain.

    Args:
        model: shares its weights with the result.
        costs: by which a layer gains, of the machine that chose; those of this one if None.
    """
    with refusals(f"execution is {execution!r}"):
        own = skipping.Costs(*costs) if costs else skipping.default_costs()
        crossover = 0.0 if execution == "skip" else None
        name = "skip" if execution == "auto" else execution
        backend = skipping.backend(name, crossover=crossover, costs=own)
        return skipping.compile(model, backend), astuple(own)
