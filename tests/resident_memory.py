"""Memory use of this process, for leak tests."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path

__all__ = ["allocated_bytes", "resident_mib"]

_STATM = Path("/proc/self/statm")


def resident_mib() -> float | None:
    """Resident memory in MiB after garbage collection; None where it is unknown (other systems than Linux)."""
    if not _STATM.exists():
        return None
    gc.collect()
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE / 2**20


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    ]  # fmt: skip


def allocated_bytes() -> int | None:
    """Bytes allocated by `malloc` after garbage collection; None without glibc.

    Exact, unlike resident memory. Includes Python objects if PYTHONMALLOC is "malloc".
    """
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo
    gc.collect()
    gc.collect()  # what finalizers of the first left
    found = mallinfo()
    return int(found.uordblks) + int(found.hblkhd)
