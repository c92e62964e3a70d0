"""States of a run: the last two, which it resumes from, and those that other runs continue.

``<folder>/state-<step>-<digest>.pt`` holds tensors and plain values only, and is verified by its
digest. A state of other code, other data or another first phase is of no use and is removed.
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

from experiments.digest import file_digest
from experiments.store.io import flush_folder, write_whole
from experiments.store.paths import STATES

#: The last state, and the one before it in case that the last is damaged.
NUM_KEPT = 2
CAUSES = {
    "code": "the code has changed",
    "data": "the data has changed",
    "first_weights": "the first phase was trained again",
    "computing": "precision or compilation has changed",
}


class Saved:
    """The saved states of one run.

    Args:
        origin: What a state must have begun with to be resumed: what `CAUSES` names.
    """

    def __init__(self, folder: Path, origin: dict[str, str | None], say: Callable[[str], None]):
        self.folder, self.origin, self.say = folder, origin, say
        self.kept = folder / STATES

    def files(self) -> list[Path]:
        """The saved states, the last one first."""
        return sorted(self.folder.glob("state-*.pt"), key=_step, reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Add a state once it is on the disk, and drop all but the last `NUM_KEPT`.

        Raises:
            OSError: If it cannot be written; older states stay as they are.
        """
        path = self._write("state", state)
        os.replace(path, path.with_name(f"state-{step}-{file_digest(path)[:32]}.pt"))
        flush_folder(self.folder)
        for path in self.files()[NUM_KEPT:]:
            path.unlink()

    def keep(self, step: int, state: dict[str, Any]) -> None:
        """Write the state of a step for other runs to continue."""
        self._write(f"{STATES}/{step}.pt", state)

    def _write(self, name: str, state: dict[str, Any]) -> Path:
        whole, path = {"origin": self.origin, **state}, self.folder / name
        write_whole(path, lambda stream: torch.save(whole, stream))
        return path

    def newest(self) -> dict[str, Any] | None:
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
                return state
            causes = " and ".join(CAUSES[key] for key in differing)
            self.say(f"{causes} since step {_step(path)}, so the run starts from the beginning")
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
    """Restore what `generators` returned; a device's generator that it lacks stays as it is."""
    torch.set_rng_state(states["rng"])
    random.setstate(states["python_rng"])
    name, keys, *rest = states["numpy_rng"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if "device_rng" in states and device.type in ("cuda", "mps"):
        getattr(torch, device.type).set_rng_state(states["device_rng"])


def _step(path: Path) -> int:
    number = path.stem.split("-")[1]
    return int(number) if number.isdecimal() else -1
