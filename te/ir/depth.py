"""How deep trees may be: loop functions are walked recursively, a few Python frames for each level."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["deep_trees"]

_FRAMES = 20_000
"""Python's frames lie on the heap: a limit this high takes memory only where trees are that deep."""


class _Users:
    """Who needs the high limit now, in any thread: it is the process's. `before` is the limit to go back to."""

    lock = threading.Lock()
    count = 0
    before = 0


@contextmanager
def deep_trees() -> Generator[None]:
    """Lets functions be walked that nest deeper than Python's own limit allows: a check for each of many arguments."""
    with _Users.lock:
        if _Users.count == 0:
            _Users.before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_Users.before, _FRAMES))
        _Users.count += 1
    try:
        yield
    finally:
        with _Users.lock:
            _Users.count -= 1
            if _Users.count == 0:
                sys.setrecursionlimit(_Users.before)
