"""Memory that one gradient step frees is kept for the next.

The C library of Linux gives large blocks back to the system when they are freed, so every step would pay for the pages
of its activations anew: up to a quarter of a convolutional step.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, from its malloc.h."""


@cache
def keep_freed_memory() -> bool:
    """Have this process reuse blocks of up to 32 MiB, the most that all versions of glibc take; False elsewhere."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(MMAP_THRESHOLD, 32 << 20) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
