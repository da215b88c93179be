"""Runs regions on the fork-join pool: Python functions as tasks, compiled ones, and calls from two concurrent
threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import llvmlite.binding as llvm

from relayc.backend.llvm import pool
from relayc.backend.llvm.linking import Image, link, process_triple
from relayc.backend.runtime.context import Context

__all__ = ["Body", "Parallel", "Task", "assemble", "context", "in_two_python_threads", "run", "task"]

Task = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32
)
Parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, Task, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
Body = Callable[[int, int, int], object]
"""Called with the number of a chunk, the number of chunks, and the step."""


def context(threads: int) -> Context:
    made = Context()
    made._ctx.num_threads = threads  # may exceed the machine's number of threads
    return made


def task(body: Body) -> ctypes._CFuncPtr:
    return Task(lambda _ctx, _closure, i, n, step, _threads: body(i, n, step))


def run(threads: int, tasks: int, body: Body, steps: int = 1) -> None:
    """Run one region on the process-wide pool."""
    ctx = context(threads)
    Parallel(pool.parallel_address())(ctx.address, task(body), None, tasks, steps)


def assemble(source: str) -> Image:
    """LLVM assembly compiled to callable code."""
    machine = llvm.Target.from_triple(process_triple()).create_target_machine(reloc="pic", codemodel="small")
    return link([machine.emit_object(llvm.parse_assembly(source))])


def in_two_python_threads(work: Callable[[], object], times: int) -> None:
    """Call `work` repeatedly in two concurrent threads; fails if one of them does not finish."""
    counts = [0, 0]

    def repeat(k: int) -> None:
        for _ in range(times):
            work()
            counts[k] += 1

    threads = [threading.Thread(target=repeat, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert counts == [times, times]
