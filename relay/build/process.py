"""Settings of the Python process that compiling is slow with, changed for as long as a model is compiled."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["compiling"]

_OBJECTS = 50_000
"""New objects between two rounds of the garbage collector.

Compiling makes many nodes and keeps most of them; by Python's own 700 the collector takes a twelfth of the time.
"""

_SECONDS = 0.0005
"""How long a thread waits for the interpreter before it asks for it.

By Python's own 5 ms, LLVM's thread loses a third of its time in waiting for the one that lowers the next functions.
"""


class _Users:
    """Who compiles now, in any thread: the settings are the process's. The others are what to go back to."""

    lock = threading.Lock()
    count = 0
    threshold: tuple[int, int, int] = (0, 0, 0)
    interval = 0.0


@contextmanager
def compiling() -> Generator[None]:
    """Let the garbage collector run less often, and threads take turns more often."""
    with _Users.lock:
        if _Users.count == 0:
            _Users.threshold, _Users.interval = gc.get_threshold(), sys.getswitchinterval()
            if _Users.threshold[0]:  # 0: the collector is off
                gc.set_threshold(max(_Users.threshold[0], _OBJECTS), *_Users.threshold[1:])
            sys.setswitchinterval(min(_Users.interval, _SECONDS))
        _Users.count += 1
    try:
        yield
    finally:
        with _Users.lock:
            _Users.count -= 1
            if _Users.count == 0:
                gc.set_threshold(*_Users.threshold)
                sys.setswitchinterval(_Users.interval)
