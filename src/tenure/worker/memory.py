"""Measures how much memory this process occupies."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident() -> int:
    """Return the bytes that this process occupies now; 0 if the system does not report them."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
