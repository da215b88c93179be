"""The interpreter for code with barriers: the threads of a block run together.

Each thread runs up to its next barrier, in the order of its index, and waits there until all others have come; shared
memory exists once per block; the lanes of a warp wait for each other in shuffles. The order makes runs repeatable; a
barrier or shuffle that some threads never reach is an error.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from relayc.te.ir.module import IRModule
from relayc.te.tir.expr import IterVar
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.interpreter import Interpreter, InterpreterError
from relayc.te.tir.stmt import Allocate, AttrStmt, Stmt

__all__ = ["WARP", "BlockInterpreter"]

WARP = 32
"""Lanes of a warp, which shuffle among themselves."""


class _Abandoned(Exception):
    """Raised in the threads of a block that wait while another one has failed."""


class _BlockThread:
    """One thread of a block, which runs until it waits or ends and then hands control back."""

    def __init__(self, run: Callable[[], None], pool: Executor) -> None:
        self.finished = False
        self.abandoned = False
        self.ready: Callable[[], bool] | None = None
        """whether the shuffle that the thread waits in can continue; None at a barrier"""
        self._resume, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._run = run
        self.outcome = pool.submit(self._main)

    def _main(self) -> None:
        self._resume.acquire()
        try:
            if not self.abandoned:
                self._run()
        except _Abandoned:
            pass
        finally:
            self.finished = True
            self._paused.release()

    def advance(self) -> None:
        """Run up to the next barrier or shuffle, or to the end."""
        self._resume.release()
        self._paused.acquire()

    def wait(self, ready: Callable[[], bool] | None = None) -> None:
        """Called inside the thread: wait at a barrier, or in a shuffle that continues when `ready`."""
        self.ready = ready
        self._paused.release()
        self._resume.acquire()
        self.ready = None
        if self.abandoned:
            raise _Abandoned

    @property
    def runnable(self) -> bool:
        """Can the thread continue: is it in a shuffle that all lanes have reached?"""
        return not self.finished and self.ready is not None and self.ready()


class BlockInterpreter(Interpreter):
    """An `Interpreter` that obeys barriers among the threads of a block ("threadIdx" axes).

    `backwards` runs the threads in the opposite order: a program whose result differs lacks a barrier.
    """

    def __init__(
        self,
        module: IRModule | Mapping[str, PrimFunc],
        functions: Mapping[str, Callable[..., Any]] | None = None,
        *,
        check_uninitialized: bool = False,
        backwards: bool = False,
    ) -> None:
        super().__init__(module, functions, check_uninitialized=check_uninitialized)
        self._order = -1 if backwards else 1
        self._thread: _BlockThread | None = None
        self._shared: dict[tuple[int, int], Any] = {}
        self._visits: dict[int, int] = {}
        self._extents: dict[str, int] = {}
        self._threads = 0
        self._shuffles: dict[tuple[int, int], dict[int, Any]] = {}
        """(warp, count of earlier shuffles) -> lane -> its operand"""
        self._linear = self._shuffle_count = 0

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        if self._thread is not None or not _is_thread_axis(node):
            super().visit_AttrStmt(node)
            return
        axes: list[IterVar] = []
        extents: list[int] = []
        body: Stmt = node
        while isinstance(body, AttrStmt) and _is_thread_axis(body):
            axes.append(body.subject)
            extents.append(self.visit(body.value))
            body = body.body
        self._shared = {}
        self._extents = {axis.thread_tag: extent for axis, extent in zip(axes, extents, strict=True)}
        self._run_block(axes, extents, body)

    def _run_block(self, axes: list[IterVar], extents: list[int], body: Stmt) -> None:
        positions = list(itertools.product(*[range(e) for e in reversed(extents)]))
        if not positions:
            return
        with ThreadPoolExecutor(len(positions)) as pool:
            self._threads, self._shuffles = len(positions), {}
            threads = [self._start(dict(zip(axes, reversed(p), strict=True)), body, pool) for p in positions]
            try:
                while not all(t.finished for t in threads):
                    self._run_to_barrier(threads[:: self._order])
            finally:
                for thread in threads:
                    thread.abandoned = True
                    if not thread.finished:
                        thread.advance()

    def _run_to_barrier(self, threads: list[_BlockThread]) -> None:
        """Run all threads to their next barrier or to their end."""
        running = threads
        while running:
            for thread in running:
                thread.advance()
                if thread.finished:
                    thread.outcome.result()
            running = [thread for thread in threads if thread.runnable]
        if any(thread.ready is not None and not thread.finished for thread in threads):
            raise InterpreterError("some lanes of a warp wait in a shuffle that others never reach")
        if len({thread.finished for thread in threads}) == 2:
            raise InterpreterError("some threads of a block wait at a barrier that others never reach")

    def _start(self, position: Mapping[IterVar, int], body: Stmt, pool: Executor) -> _BlockThread:
        """A thread of the block with variables of its own; memory is common."""
        runner = copy.copy(self)
        runner.env = {**self.env, **{axis.var: i for axis, i in position.items()}}
        runner._thread_index = {**self._thread_index, **{axis.thread_tag: i for axis, i in position.items()}}
        runner._visits = {}
        runner._linear, runner._shuffle_count = self._linear_index(position), 0
        runner._thread = _BlockThread(lambda: runner.visit(body), pool)
        return runner._thread

    def _linear_index(self, position: Mapping[IterVar, int]) -> int:
        """The number of a thread in its block: x fastest. Warps are cut from this order."""
        linear, stride = 0, 1
        for tag in ("threadIdx.x", "threadIdx.y", "threadIdx.z"):
            for axis, i in position.items():
                if axis.thread_tag == tag:
                    linear += i * stride
                    stride *= self._extents[tag]
        return linear

    def visit_Allocate(self, node: Allocate) -> None:
        if self._thread is None or not node.buffer.scope.startswith("shared"):
            super().visit_Allocate(node)
            return
        count = self._visits[id(node)] = self._visits.get(id(node), 0) + 1
        key = id(node), count  # the threads of a block meet here equally often
        if key not in self._shared:
            self._shared[key] = self.allocate(node.buffer)
        self.env[node.buffer.data] = self._shared[key]
        self.visit(node.body)

    def barrier(self) -> None:
        if self._thread is not None:
            self._thread.wait()

    def shuffle(self, mask: int, value: Any, flip: int, width: int) -> Any:
        """Exchange values in the lanes' n-th shuffle, which all lanes of `mask` that the block has must reach."""
        thread = self._thread
        if thread is None:
            return super().shuffle(mask, value, flip, width)
        warp, lane = divmod(self._linear, WARP)
        self._shuffle_count += 1
        brought = self._shuffles.setdefault((warp, self._shuffle_count), {})
        brought[lane] = value
        expected = {i for i in range(WARP) if mask >> i & 1 and warp * WARP + i < self._threads}
        thread.wait(lambda: brought.keys() >= expected)
        source = lane // width * width + ((lane % width) ^ flip)
        if source not in brought:
            raise InterpreterError(f"lane {lane} of a warp reads lane {source}, which takes no part in the shuffle")
        return brought[source]


def _is_thread_axis(node: AttrStmt) -> bool:
    subject = node.subject
    return node.key == "thread_extent" and isinstance(subject, IterVar) and subject.thread_tag.startswith("threadIdx")
