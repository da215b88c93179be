"""How much memory this process holds, for tests that look for leaks."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

__all__ = ["resident_mib"]

_STATM = Path("/proc/self/statm")


def resident_mib() -> float | None:
    """Resident memory in MiB once garbage is collected; None where the system does not tell (it is Linux that does)."""
    if not _STATM.exists():
        return None
    gc.collect()
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE / 2**20
