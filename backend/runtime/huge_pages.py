"""Memory in huge pages, which need fewer TLB entries."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

__all__ = ["HUGE_PAGE", "first_huge_page", "map_huge_pages"]

HUGE_PAGE = 2 << 20
"""Bytes of a huge page."""


def map_huge_pages(nbytes: int) -> mmap.mmap | None:
    """Map at least `nbytes` bytes from `first_huge_page` on, backed by huge pages; None where the system has none.

    Huge pages avoid TLB misses in kernels that stream or stride through much memory. Heap memory is not suitable: it
    may be backed by small pages already and is not aligned to a huge page.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return None
    try:
        pages = mmap.mmap(-1, (-(-nbytes // HUGE_PAGE) + 1) * HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        return None
    with suppress(OSError):  # only a hint: it fails on systems without huge pages
        pages.madvise(advice)
    return pages


def first_huge_page(pages: mmap.mmap) -> int:
    """Address of the first aligned huge page in the mapping."""
    begin = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    return -(-begin // HUGE_PAGE) * HUGE_PAGE
