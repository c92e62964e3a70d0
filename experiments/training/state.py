"""Saved states of a run: the last two, each verified by its digest.

``<folder>/state-<step>-<digest>.pt`` holds tensors and plain values only. A state of other code,
other data or another first phase is of no use and is removed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.errors import CannotWrite
from experiments.specs.digest import file_digest
from experiments.store.io import flush_folder

#: The last state, and the one before it in case that the last is damaged.
NUM_KEPT = 2
CAUSES = {
    "code": "the code has changed",
    "data": "the data has changed",
    "first_weights": "the first phase was trained again",
}


class Saved:
    """The saved states of one run.

    Args:
        origin: What a state must have begun with to be resumed: the hashes named in `CAUSES`.
    """

    def __init__(self, folder: Path, origin: dict[str, str | None], say: Callable[[str], None]):
        self.folder, self.origin, self.say = folder, origin, say

    def files(self) -> list[Path]:
        """The saved states, the last one first."""
        return sorted(self.folder.glob("state-*.pt"), key=_step, reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Add a state once it is on the disk, and drop all but the last `NUM_KEPT`.

        Raises:
            OSError: If it cannot be written; older states stay as they are.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / "state.part"
        try:
            with part.open("wb") as stream:
                torch.save({"origin": self.origin, **state}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, self.folder / f"state-{step}-{file_digest(part)[:32]}.pt")
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                part.unlink()
            # torch's own writer turns a full disk into a RuntimeError.
            reason = getattr(error, "strerror", None) or _reason(self.folder)
            raise CannotWrite(f"no state can be saved in {self.folder}: {reason}") from None
        flush_folder(self.folder)
        for path in self.files()[NUM_KEPT:]:
            path.unlink()

    def newest(self) -> Path | None:
        """The last state that is whole; None without one of this code, data and first phase."""
        for path in self.files():
            state = self.read(path)
            if state is None:
                self.say(f"{path} is damaged and is left out")
                with suppress(OSError):  # a folder, or no permission
                    path.unlink()
                continue
            differing = [k for k, value in self.origin.items() if state["origin"].get(k) != value]
            if not differing:
                return path
            causes = " and ".join(CAUSES[key] for key in differing)
            self.say(f"{causes} since step {_step(path)}, so the run begins anew")
            self.remove()
            break
        return None

    def read(self, path: Path) -> dict[str, Any] | None:
        """The state in a file; None if the file is not as `save` wrote it.

        Its tensors are read from the disk where they are used.
        """
        try:
            if not path.stem.endswith(f"-{file_digest(path)[:32]}"):
                return None
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # it cannot be read at all, or has the digest of its own garbage
            return None
        return state if isinstance(state, dict) and isinstance(state.get("origin"), dict) else None

    def remove(self) -> None:
        """Drop all states."""
        shutil.rmtree(self.folder, ignore_errors=True)


def generators(device: torch.device) -> dict[str, Any]:
    """States of all generators of random numbers that a run may draw from."""
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "rng": torch.get_rng_state(),
        "python_rng": random.getstate(),
        "numpy_rng": (name, torch.from_numpy(np.array(keys, dtype=np.int64)), *rest),
    }
    if device.type in ("cuda", "mps"):
        states["device_rng"] = getattr(torch, device.type).get_rng_state()
    return states


def set_generators(states: dict[str, Any], device: torch.device) -> None:
    """Restore what `generators` returned; a generator that it lacks stays as it is."""
    torch.set_rng_state(states["rng"])
    if "python_rng" in states:
        random.setstate(states["python_rng"])
    if "numpy_rng" in states:
        name, keys, *rest = states["numpy_rng"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if "device_rng" in states and device.type in ("cuda", "mps"):
        getattr(torch, device.type).set_rng_state(states["device_rng"])


def _step(path: Path) -> int:
    number = path.stem.split("-")[1]
    return int(number) if number.isdecimal() else -1


def _reason(folder: Path) -> str:
    """Why a write failed, for an error of torch that does not say it."""
    full = shutil.disk_usage(folder).free < 2**20
    return "no space left on the device" if full else "the write failed"
