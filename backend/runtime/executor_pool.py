"""Executors for concurrent runs of one model: each has memory of its own, all share the weights."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from relayc.backend.runtime.graph_executor import GraphModule

__all__ = ["ExecutorPool"]


class ExecutorPool:
    """Executors over one set of weights, cloned from `first` as threads need them, and kept for later runs.

    There are as many as runs at the same time: whoever limits these limits the memory of the pool. Any thread may call
    any method. The executors of a model with KV caches keep them from run to run, so it is none for a pool.
    """

    def __init__(self, first: GraphModule) -> None:
        self._first, self._idle, self._busy = first, [first], set[GraphModule]()
        self._lock = threading.Lock()

    @contextmanager
    def borrowed(self) -> Generator[GraphModule]:
        """An executor that no other thread uses until the context ends."""
        with self._lock:
            executor = self._idle.pop() if self._idle else None
            if executor is not None:
                self._busy.add(executor)
        if executor is None:
            executor = self._first.clone()
            with self._lock:
                self._busy.add(executor)
        try:
            yield executor
        finally:
            with self._lock:
                self._busy.discard(executor)
                self._idle.append(executor)

    def cancel(self) -> None:
        """End the runs in progress: they raise `RunCancelledError`."""
        with self._lock:
            for executor in self._busy:
                executor.cancel()
