"""The trace of a session's runs, in the format of Chrome's and Perfetto's viewers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from relayc.backend.runtime.profiler import Report
from relayc.runtime import GraphModule

__all__ = ["RunLog"]


class RunLog:
    """Times of runs, and of each node, measured once when the trace is written."""

    def __init__(self, prefix: str) -> None:
        self.start = time.perf_counter_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []
        self._last: tuple[GraphModule, Mapping[str, Any]] | None = None
        self._lock = threading.Lock()

    def add_run(self, started: int, executor: GraphModule, feed: Mapping[str, Any]) -> None:
        """A run that began at `started`, in nanoseconds, and has just ended."""
        with self._lock:
            self._events.append(self._event("model_run", "Session", started, time.perf_counter_ns() - started))
            self._last = executor, feed

    def _event(self, name: str, category: str, start: int, duration: float, **facts: Any) -> dict[str, Any]:
        """Chrome's "complete" event; times in microseconds."""
        return {
            "name": name, "cat": category, "ph": "X", "pid": os.getpid(), "tid": threading.get_ident(),
            "ts": (start - self.start) / 1e3, "dur": duration / 1e3, "args": facts,
        }  # fmt: skip

    def write(self) -> str:
        """Write the trace, with the nodes of one more run of the last inputs, and return its file's name."""
        with self._lock:
            events, last = list(self._events), self._last
        at = time.perf_counter_ns()
        for node in () if last is None else _nodes(*last):
            duration = node.seconds * 1e9
            events.append(self._event(node.name, "Node", at, duration, operators=node.ops, shapes=node.shapes))
            at += int(duration)
        name = f"{self._prefix}{datetime.now():%Y-%m-%d_%H-%M-%S}.json"
        with open(name, "w", encoding="utf-8") as file:
            json.dump(events, file)
        return name


def _nodes(executor: GraphModule, feed: Mapping[str, Any]) -> Report:
    """The times of the nodes in one more run of `feed`, by an executor of its own."""
    own = executor.clone()
    for name, value in feed.items():
        own.set_input(name, value)
    return own.profile(repeat=1)
