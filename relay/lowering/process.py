"""Settings of the Python process that compiling is slow with, changed for as long as a model is compiled."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator

from relayc.te.ir.process import process_setting

__all__ = ["compiling"]

_OBJECTS = 50_000
"""New objects between two rounds of the garbage collector.

Compiling makes many nodes and keeps most of them; by Python's own 700 the collector takes a twelfth of the time.
"""

_SECONDS = 0.0005
"""How long a thread waits for the interpreter before it asks for it.

By Python's own 5 ms, LLVM's threads lose a third of their time in waiting for the one that lowers the next functions.
"""


@process_setting
def compiling() -> Generator[None]:
    """Let the garbage collector run less often, and threads take turns more often."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    if threshold[0]:  # 0: the collector is off
        gc.set_threshold(max(threshold[0], _OBJECTS), *threshold[1:])
    sys.setswitchinterval(min(interval, _SECONDS))
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)
