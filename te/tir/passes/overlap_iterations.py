"""The end of one iteration of a loop runs beside the beginning of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from te.ir.visitor import Mutator, collect
from te.tir import ops
from te.tir.buffer import Buffer
from te.tir.expr import BufferLoad, PrimExpr, Var
from te.tir.function import PrimFunc
from te.tir.passes.base import FunctionPass
from te.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt
from te.tir.substitute import fresh_copy, substitute

__all__ = ["OVERLAP", "OverlapIterations", "overlap_iterations"]

OVERLAP = "pragma_overlap_iterations"
"""Annotation of a loop whose iterations end with a loop that may run beside one they begin with."""


class _Overlapper(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        new = node.rebuild(self.visit)
        return _overlapped(new) if OVERLAP in new.annotations else new


def _overlapped(loop: For) -> Stmt:
    """for k: { if k is the first: begin(k) else: begin(k) beside end(k - 1); rest(k) }; end(the last)"""
    loop = loop.replace(annotations={key: value for key, value in loop.annotations.items() if key != OVERLAP})
    allocated: list[Buffer] = []
    stmts: list[Stmt] = []
    _take_apart(loop.body, allocated, stmts)
    *work, end = stmts
    at = next((i for i, s in enumerate(work) if _run_alike(s, end)), None)
    extent = ops.as_int(loop.extent)
    if at is None or extent is None or extent < 2 or not _are_independent(work[: at + 1], end):
        return loop
    begin, k = work[at], loop.loop_var
    before = fresh_copy(end, {k: ops.sub(k, 1)})
    assert isinstance(begin, For) and isinstance(before, For)
    both = begin.replace(body=ops.seq(substitute(before.body, {before.loop_var: begin.loop_var}), begin.body))
    either = IfThenElse(ops.greater(k, loop.min), both, fresh_copy(begin))
    body = loop.replace(body=ops.seq(*work[:at], either, *work[at + 1 :]))
    result = ops.seq(body, fresh_copy(end, {k: ops.add(loop.min, extent - 1)}))
    for buffer in reversed(allocated):
        result = Allocate(buffer, result)
    return result


def _take_apart(stmt: Stmt, allocated: list[Buffer], stmts: list[Stmt]) -> None:
    """The statements of a loop's body in order, and the memory that they use."""
    if isinstance(stmt, Allocate):
        allocated.append(stmt.buffer)
        _take_apart(stmt.body, allocated, stmts)
    elif isinstance(stmt, SeqStmt):
        for s in stmt.stmts:
            _take_apart(s, allocated, stmts)
    else:
        stmts.append(stmt)


def _run_alike(a: Stmt, b: Stmt) -> bool:
    """Are they serial loops over the same values?"""
    if not isinstance(a, For) or not isinstance(b, For) or a.kind is not ForKind.SERIAL or b.kind is not a.kind:
        return False
    bounds = [ops.as_int(e) for e in (a.min, a.extent, b.min, b.extent)]
    return None not in bounds and bounds[:2] == bounds[2:]


def _are_independent(stmts: Sequence[Stmt], other: Stmt) -> bool:
    """Does none write what the other reads or writes?"""
    reads, writes = _accessed(stmts)
    other_reads, other_writes = _accessed([other])
    return not (writes & (other_reads | other_writes) or reads & other_writes)


def _accessed(stmts: Sequence[Stmt]) -> tuple[set[Var], set[Var]]:
    """The pointers of buffers that are read, and of those that are written."""
    reads = {load.buffer.data for s in stmts for load in collect(s, BufferLoad)}
    return reads, {store.buffer.data for s in stmts for store in collect(s, BufferStore)}


def overlap_iterations(func: PrimFunc) -> PrimFunc:
    """The function with the iterations of marked loops overlapping: see `OverlapIterations`."""
    return func.with_body(_Overlapper().visit(func.body))


@dataclass(frozen=True)
class OverlapIterations(FunctionPass):
    """Under loops with the pragma "overlap_iterations" the last loop runs an iteration late, in one as long as it.

    Where one stores results and the other reads inputs of the next iteration, memory has both to do at once, and
    arithmetic of the one hides what the other waits for. The loop stays as it is where the two have no constant length
    in common, or touch the same memory. Buffers must be flat.
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return overlap_iterations(func)
