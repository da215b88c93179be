"""The interpreter for code with barriers: the threads of a block run together.

Each thread runs up to its next barrier, in the order of its index, and waits there until all others have come; shared
memory exists once per block. The order makes runs repeatable; a barrier that some threads never reach is an error.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from te.ir.module import IRModule
from te.tir.expr import IterVar
from te.tir.function import PrimFunc
from te.tir.interpreter import Interpreter, InterpreterError
from te.tir.stmt import Allocate, AttrStmt, Stmt

__all__ = ["BlockInterpreter"]


class _Abandoned(Exception):
    """Raised in the threads of a block that wait while another one has failed."""


class _BlockThread:
    """One thread of a block: runs while it holds the baton, gives it back at barriers and at its end."""

    def __init__(self, run: Callable[[], None], pool: Executor) -> None:
        self.finished = False
        self.abandoned = False
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
        """Run up to the next barrier or to the end."""
        self._resume.release()
        self._paused.acquire()

    def wait(self) -> None:
        """Called inside the thread: a barrier."""
        self._paused.release()
        self._resume.acquire()
        if self.abandoned:
            raise _Abandoned


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
        self._run_block(axes, extents, body)

    def _run_block(self, axes: list[IterVar], extents: list[int], body: Stmt) -> None:
        positions = list(itertools.product(*[range(e) for e in reversed(extents)]))
        if not positions:
            return
        with ThreadPoolExecutor(len(positions)) as pool:
            threads = [self._start(dict(zip(axes, reversed(p), strict=True)), body, pool) for p in positions]
            try:
                while not all(t.finished for t in threads):
                    for thread in threads[:: self._order]:
                        thread.advance()
                        if thread.finished:
                            thread.outcome.result()
                    if len({t.finished for t in threads}) == 2:
                        raise InterpreterError("some threads of a block wait at a barrier that others never reach")
            finally:
                for thread in threads:
                    thread.abandoned = True
                    if not thread.finished:
                        thread.advance()

    def _start(self, position: Mapping[IterVar, int], body: Stmt, pool: Executor) -> _BlockThread:
        """A thread of the block with variables of its own; memory is common."""
        runner = copy.copy(self)
        runner.env = {**self.env, **{axis.var: i for axis, i in position.items()}}
        runner._thread_index = {**self._thread_index, **{axis.thread_tag: i for axis, i in position.items()}}
        runner._visits = {}
        runner._thread = _BlockThread(lambda: runner.visit(body), pool)
        return runner._thread

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


def _is_thread_axis(node: AttrStmt) -> bool:
    subject = node.subject
    return node.key == "thread_extent" and isinstance(subject, IterVar) and subject.thread_tag.startswith("threadIdx")
