"""How a process treats its memory."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")


def keep_memory() -> None:
    """Let glibc keep freed memory: a step's large tensors else cost page faults each time."""
    # Numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in malloc.h.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-3, -1):
            mallopt(option, 1 << 30)


def room() -> int:
    """Bytes that a process may take beside what it will take again because it did before.

    The free memory of the machine, or of the control group (a job's or a container's) where that
    has a limit, less the fall of the process from its peak.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    own: int = psutil.Process().memory_info().rss
    free = min([psutil.virtual_memory().available, *_left_in_groups()])
    return free - max(0, peak - own)


def _left_in_groups(memberships: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Bytes left in each control group of this process that has a limit (versions 1 and 2)."""
    lines = memberships.read_text(encoding="utf-8").splitlines() if memberships.is_file() else []
    for _, controllers, place in (line.split(":", 2) for line in lines):
        if controllers not in ("", "memory"):
            continue
        root = CGROUPS / controllers
        files = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        group = root / place.lstrip("/")
        # Within a container the group's path is often that of its host.
        for folder in [path for path in (group, *group.parents) if path.is_relative_to(root)]:
            with suppress(OSError, ValueError, KeyError):
                limit, used = (int((folder / name).read_text()) for name in files[:2])
                rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield limit - used + int(dict(rows)[files[2]])
