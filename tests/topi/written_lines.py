"""Which threads write to which cache lines, derived from lowered loops; nothing runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.te.ir import collect
from relayc.te.tir import (
    Allocate,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Ramp,
    Select,
    SeqStmt,
    Var,
)
from relayc.te.tir.analysis import free_variables
from relayc.te.tir.expr import Binary, Logical, Or
from relayc.te.tir.interpreter import Interpreter

__all__ = ["written_lines"]

LINE = 64
"""Bytes of a cache line. Tensors are aligned to it."""
MOST_THREADS = 4096


def written_lines(function: PrimFunc, cores: int) -> tuple[int, int]:
    """The number of cache lines that parallel loops write, and of those that several of `cores` threads write.

    A thread runs consecutive iterations of a loop.
    """
    walk = _Stores(cores)
    walk.visit(function.body)
    lines = several = 0
    for pairs in [pairs for loop in walk.loops for pairs in loop.values()]:
        of_threads = np.unique(np.concatenate([line * MOST_THREADS + thread for line, thread in pairs]))
        _, count = np.unique(of_threads // MOST_THREADS, return_counts=True)
        lines, several = lines + len(count), several + int(np.sum(count > 1))
    return lines, several


class _Stores(Interpreter):
    """Evaluates the addresses of stores for all iterations in one step: a loop variable is an array along its own axis.

    Lanes are the last axis.
    """

    def __init__(self, cores: int) -> None:
        super().__init__({})
        self.cores = cores
        self.loops: list[dict[Buffer, list[tuple[np.ndarray, np.ndarray]]]] = []
        """of each parallel loop, lines and threads by buffer"""
        self._depth = 0
        self._thread: np.ndarray | None = None
        self._own: set[Var] = set()
        self._conditions: list[Any] = []

    def visit_For(self, node: For) -> None:
        start, extent = self.visit(node.min), self.visit(node.extent)
        most = int(np.max(extent))
        self._depth += 1
        index = np.arange(most, dtype=np.int64).reshape(most, *[1] * self._depth)
        self.env[node.loop_var] = start + index
        self._conditions.append(index < extent)
        if node.kind is ForKind.PARALLEL and self._thread is None:
            threads = min(self.cores, node.most_threads, most)
            self._thread = ((index + 1) * threads - 1) // most
            self.loops.append({})
            self.visit(node.body)
            self._thread = None
        else:
            self.visit(node.body)
        self._conditions.pop()
        self._depth -= 1

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        """Where a condition depends on data, both branches count."""
        known = all(var in self.env for var in free_variables(node.condition))
        holds = self.visit(node.condition) if known and not collect(node.condition, BufferLoad) else None
        cases = ((node.then_case, True), (node.else_case, False))
        for case, wanted in cases:
            if case is not None:
                self._conditions.append(True if holds is None else np.equal(holds, wanted))
                self.visit(case)
                self._conditions.pop()

    def visit_Allocate(self, node: Allocate) -> None:
        if self._thread is not None:
            self._own.add(node.buffer.data)
        self.visit(node.body)

    def visit_SeqStmt(self, node: SeqStmt) -> None:
        for stmt in node.stmts:
            self.visit(stmt)

    def visit_BufferStore(self, node: BufferStore) -> None:
        if self._thread is None or node.buffer.data in self._own:
            return
        strides = self._strides(node.buffer)
        place: Any = self._dim(node.buffer.elem_offset)
        for index, stride in zip(node.indices, strides, strict=True):
            place = place + self.visit(index) * stride
        conditions = self._conditions if node.predicate is None else [*self._conditions, self.visit(node.predicate)]
        decided = [c for c in conditions if not np.all(c)]
        line = place * node.buffer.dtype.bits // 8 // LINE
        line, thread, *holds = np.broadcast_arrays(line, self._thread, *decided)
        kept = np.logical_and.reduce(holds) if holds else np.ones_like(line, bool)
        self.loops[-1].setdefault(node.buffer, []).append((line[kept], thread[kept]))

    def _strides(self, buffer: Buffer) -> list[int]:
        if buffer.strides is not None:
            return [self._dim(stride) for stride in buffer.strides]
        shape = [self._dim(dim) for dim in buffer.shape]
        return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]

    def visit_Ramp(self, node: Ramp) -> np.ndarray:
        return np.asarray(self.visit(node.base)) + self.visit(node.stride) * np.arange(node.lanes)

    def visit_Broadcast(self, node: Broadcast) -> Any:
        return self.visit(node.value)

    def visit_Min(self, node: Binary) -> Any:
        return np.minimum(self.visit(node.a), self.visit(node.b))

    def visit_Max(self, node: Binary) -> Any:
        return np.maximum(self.visit(node.a), self.visit(node.b))

    def visit_Logical(self, node: Logical) -> Any:
        return (np.logical_or if isinstance(node, Or) else np.logical_and)(self.visit(node.a), self.visit(node.b))

    def visit_Select(self, node: Select) -> Any:
        return np.where(self.visit(node.condition), self.visit(node.true_value), self.visit(node.false_value))

    def visit_LetStmt(self, node: LetStmt) -> None:
        if node.value.dtype.is_integral and not collect(node.value, BufferLoad):  # others are not in addresses
            self.env[node.var] = self.visit(node.value)
        self.visit(node.body)

    def visit_Evaluate(self, node: Evaluate) -> None:
        """Ignore prefetches and other calls that store nothing."""
