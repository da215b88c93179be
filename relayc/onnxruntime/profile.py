"""The trace of a session's runs, in the format of Chrome's and Perfetto's viewers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from relayc.backend.runtime.profiler import Report
from relayc.backend.runtime.trace import Trace
from relayc.runtime import GraphModule

__all__ = ["RunLog"]


class RunLog:
    """Times of runs, and of each node, measured once when the trace is written."""

    def __init__(self, prefix: str) -> None:
        self.start = time.perf_counter_ns()
        self._prefix = prefix
        self._runs: list[tuple[int, int, int]] = []
        """start, duration (in nanoseconds) and thread of each run"""
        self._last: tuple[GraphModule, Mapping[str, Any]] | None = None
        self._lock = threading.Lock()

    def add_run(self, started: int, executor: GraphModule, feed: Mapping[str, Any]) -> None:
        """A run that began at `started`, in nanoseconds, and has just ended."""
        with self._lock:
            self._runs.append((started, time.perf_counter_ns() - started, threading.get_ident()))
            self._last = executor, feed

    def write(self) -> str:
        """Write the trace, with the nodes of one more run of the last inputs, and return its file's name."""
        with self._lock:
            runs, last = list(self._runs), self._last
        trace = Trace()
        for started, duration, thread in runs:
            trace.add("model_run", "Session", (started - self.start) / 1e3, duration / 1e3, thread)
        if last is not None:
            at = (time.perf_counter_ns() - self.start) / 1e3
            trace.add_nodes(_nodes(*last), at, threading.get_ident())
        name = f"{self._prefix}{datetime.now():%Y-%m-%d_%H-%M-%S}.json"
        with open(name, "w", encoding="utf-8") as file:
            file.write(trace.json())
        return name


def _nodes(executor: GraphModule, feed: Mapping[str, Any]) -> Report:
    """The times of the nodes in one more run of `feed`, by an executor of its own."""
    own = executor.clone()
    for name, value in feed.items():
        own.set_input(name, value)
    return own.profile(repeat=1)
