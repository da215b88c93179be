"""How deep trees may be: loop functions are walked recursively, a few Python frames for each level."""

from __future__ import annotations

import sys
from collections.abc import Generator

from relayc.te.ir.process import process_setting

__all__ = ["deep_trees"]

_FRAMES = 20_000
"""Python's frames lie on the heap: a limit this high takes memory only where trees are that deep."""


@process_setting
def deep_trees() -> Generator[None]:
    """Lets functions be walked that nest deeper than Python's own limit allows: a check for each of many arguments."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    yield
    sys.setrecursionlimit(before)
