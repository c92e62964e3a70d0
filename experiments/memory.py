"""How a process treats its memory."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def keep_memory() -> None:
    """Let glibc keep freed memory: a step's large tensors else cost page faults each time."""
    # Numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in malloc.h.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-3, -1):
            mallopt(option, 1 << 30)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cyclic garbage, which walks all objects again as their number grows.

    For code that makes many objects and no cycles; also a decorator.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
