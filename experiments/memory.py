"""How a process treats its memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def keep_memory() -> None:
    """Let glibc keep freed memory: a step's large tensors else cost page faults each time."""
    # Numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in malloc.h.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-3, -1):
            mallopt(option, 1 << 30)
