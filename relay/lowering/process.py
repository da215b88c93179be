"""Settings of the Python process that slow down compilation, changed while a model is compiled."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator

from relayc.te.ir.process import process_setting

__all__ = ["compiling"]

_OBJECTS = 50_000
"""Allocations between two runs of the garbage collector.

Compiling creates many nodes and keeps most of them; with Python's default of 700 the collector takes a twelfth of the
time.
"""

_SECONDS = 0.0005
"""Seconds that a thread waits before it requests the interpreter lock.

With Python's default of 5 ms, LLVM's threads lose a third of their time waiting for the one that lowers the next
functions.
"""


@process_setting
def compiling() -> Generator[None]:
    """Run the garbage collector less often, and switch threads more often."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    if threshold[0]:  # 0: the collector is off
        gc.set_threshold(max(threshold[0], _OBJECTS), *threshold[1:])
    sys.setswitchinterval(min(interval, _SECONDS))
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)
