"""The recursion limit: loop functions are walked recursively, a few Python frames for each level."""

from __future__ import annotations

import sys
from collections.abc import Generator

from relayc.te.ir.process import process_setting

__all__ = ["deep_trees"]

_FRAMES = 20_000
"""Python's recursion limit, in frames. Frames lie on the heap, so that only trees that are so deep take memory."""


@process_setting
def deep_trees() -> Generator[None]:
    """Raise the recursion limit for functions that nest deeply, such as one check per argument."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    yield
    sys.setrecursionlimit(before)
