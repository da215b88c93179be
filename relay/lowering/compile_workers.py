"""Worker processes that compile the last kernels of a build into the cache of compiled code, while it compiles the
first.

Lowering is Python, which one thread of a process runs at a time; with the processes it uses all cores. They are
children that share nothing with this one but the cache, and get their jobs pickled through a pipe. All that they do
could be left out: what a worker did not put into the cache, because it failed, was killed or can't write there, the
build compiles itself, with the errors of it. There are none without a cache, on two cores (`RELAYC_NUM_THREADS`), for
few kernels, or where instruments watch the passes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from relayc.backend.cache import default_cache
from relayc.backend.runtime.interpreter import runs_python, start_python
from relayc.backend.runtime.log import logger
from relayc.backend.runtime.threads import num_threads
from relayc.backend.target import Target
from relayc.relay.lowering.process import compiling
from relayc.te.ir import PassContext

__all__ = ["WORKERS_OPTION", "CompileWorkers", "serve", "useful_workers"]

WORKERS_OPTION = "relay.compile_workers"
PassContext.declare_option(
    WORKERS_OPTION, None, "most processes that compile kernels beside the build's own; None: two less than threads, up "
    "to 8; 0: none", types=(int, type(None)),
)  # fmt: skip

_KERNELS_OF_A_WORKER = 12
"""Fewest kernels for each process: it takes as long to start as to compile three to ten of them."""
_THREADS_OF_A_BUILD = 2
"""Threads that a build keeps busy by itself: one lowers, LLVM takes two thirds of another."""
_MOST_WORKERS = 8
"""Most processes, of 150 MB each."""
_PATIENCE = 120.0
"""Seconds to wait for a process that compiles one kernel; then the build compiles it itself."""
_COMMAND = "from relayc.relay.lowering.compile_workers import serve; serve()"
_DONE = b"."

_Serve = Callable[[Any, Iterator[Any]], Iterator[None]]
"""Called in a worker with the settings and the jobs, as they come; stops at each job that is done."""


def useful_workers(kernels: int, target: Target) -> int:
    """The number of worker processes that shorten the compilation of so many kernels in the current context."""
    context = PassContext.current()
    most = context.option(WORKERS_OPTION)
    if target.kind.name != "llvm" or context.instruments or default_cache() is None or not runs_python():
        return 0
    if most is None:
        most = min(num_threads() - _THREADS_OF_A_BUILD, _MOST_WORKERS)
    return max(min(most, kernels // _KERNELS_OF_A_WORKER), 0)


class CompileWorkers:
    """Processes that run `serve`, a function of a module, on the jobs of a build; they end with the context."""

    def __init__(self, serve: _Serve) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._waiting: dict[str, Any] = {}
        self._begun: dict[str, threading.Event] = {}
        self._running: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []

    def start(self, count: int, settings: Any, jobs: Mapping[str, Any]) -> None:
        """Let `count` processes do `jobs`, by key, the last ones first."""
        self._waiting = dict(jobs)
        try:
            head = pickle.dumps((self._serve, settings))
            for _ in range(count):
                pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
                process = start_python(_COMMAND, stdin=pipe, stdout=pipe, stderr=nothing)
                thread = threading.Thread(target=self._feed, args=(process, head), name="relayc-compile", daemon=True)
                self._running.append((process, thread))
                thread.start()
        except (OSError, *_NOT_PICKLED) as error:
            logger().debug("kernels are compiled by this process only: %s", error)

    def take(self, key: str) -> None:
        """The caller needs this job done: returns when it is, or when it is the caller's to do."""
        with self._lock:
            self._waiting.pop(key, None)
            begun = self._begun.get(key)
        if begun is not None and not begun.wait(_PATIENCE):
            logger().debug("a process that compiles kernels does not answer")

    def _feed(self, process: subprocess.Popen[bytes], head: bytes) -> None:
        """Give a process one job after the other until none is left, or it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        done = True
        with suppress(OSError), process:
            while done and (taken := self._next()) is not None:
                job, finished = taken
                try:
                    process.stdin.write(head + pickle.dumps(job))
                    process.stdin.flush()
                    done = process.stdout.read(1) == _DONE
                    head = b""
                except (OSError, *_NOT_PICKLED) as error:
                    logger().debug("kernels are compiled by one process less: %s", error)
                    done = False
                finished.set()

    def _next(self) -> tuple[Any, threading.Event] | None:
        with self._lock:
            if not self._waiting:
                return None
            key, job = self._waiting.popitem()
            finished = self._begun[key] = threading.Event()
            return job, finished

    def __enter__(self) -> CompileWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._waiting.clear()
        for process, _ in self._running:
            process.kill()
        for _, thread in self._running:
            thread.join()


_NOT_PICKLED = (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError)
"""What pickling raises for what can't be pickled, or is too deep."""


def serve() -> None:
    """What a worker process runs: it reads jobs from the standard input, and answers each on the standard output."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed meanwhile is no answer
    with compiling(), suppress(EOFError):
        work, settings = pickle.load(requests)
        for _ in work(settings, iter(lambda: pickle.load(requests), None)):
            answers.write(_DONE)
