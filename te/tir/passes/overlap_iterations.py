"""Software pipelining of CPU loops: the end of one iteration is interleaved with the beginning of the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, PrimExpr, Ramp
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.passes.fuse_loops import are_independent, can_fuse, have_equal_ranges, statements_of
from relayc.te.tir.stmt import Allocate, BufferStore, For, IfThenElse, Stmt
from relayc.te.tir.substitute import fresh_copy, substitute

__all__ = ["APART", "OVERLAP", "OverlapIterations", "overlap_iterations"]

OVERLAP = "pragma_overlap_iterations"
"""Annotation of a loop whose last inner loop may be interleaved with the first inner loop of the next iteration."""
APART = "apart"
"""Value of the annotation where adjacent iterations get separate memory, to traverse it in different orders."""


class _Overlapper(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        new = node.rebuild(self.visit)
        return _overlapped(new) if OVERLAP in new.annotations else new


class _InHalves(Mutator):
    """Double-buffers the memory of an iteration: even and odd iterations use different halves."""

    def __init__(self, buffers: Sequence[Buffer], iteration: PrimExpr) -> None:
        self.half = ops.floormod(iteration, 2)
        self.twice = {b: Buffer(b.name, (2 * b.shape[0],), b.dtype, scope=b.scope, align=b.align) for b in buffers}

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        new = node.rebuild(self.visit)
        return new.replace(**self._moved(new))

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        new = node.rebuild(self.visit)
        return new.replace(**self._moved(new))

    def _moved(self, access: BufferLoad | BufferStore) -> dict[str, Any]:
        if access.buffer not in self.twice:
            return {}
        (index,), further = access.indices, self.half * access.buffer.shape[0]
        index = index.replace(base=index.base + further) if isinstance(index, Ramp) else index + further
        return {"buffer": self.twice[access.buffer], "indices": (index,)}


def _overlapped(loop: For) -> Stmt:
    """for k: { if k is the first: begin(k) else: begin(k) fused with end(k - 1); rest(k) }; end(the last)"""
    wanted = loop.annotations[OVERLAP]
    loop = loop.replace(annotations={key: value for key, value in loop.annotations.items() if key != OVERLAP})
    allocated: list[Buffer] = []
    *work, end = statements_of(loop.body, allocated)
    at = next((i for i, s in enumerate(work) if have_equal_ranges(s, end)), None)
    extent = ops.as_int(loop.extent)
    if at is None or extent is None or extent < 2 or not are_independent(work[:at], end):
        return loop
    k = loop.loop_var
    separate = wanted == APART and all(len(b.shape) == 1 for b in allocated)
    if separate:
        halves = _InHalves(allocated, k)
        *work, end = [halves.visit(statement) for statement in (*work, end)]
        allocated = list(halves.twice.values())
    begin = work[at]
    before = fresh_copy(end, {k: ops.sub(k, 1)})
    assert isinstance(begin, For) and isinstance(before, For)
    if not separate and not can_fuse(before, begin):
        return loop
    first = substitute(before.body, {before.loop_var: begin.loop_var})
    both = begin.replace(body=ops.seq(first, begin.body)) if separate else _joined(before, begin)
    either = IfThenElse(ops.greater(k, loop.min), both, fresh_copy(begin))
    body = loop.replace(body=ops.seq(*work[:at], either, *work[at + 1 :]))
    result = ops.seq(body, fresh_copy(end, {k: ops.add(loop.min, extent - 1)}))
    for buffer in reversed(allocated):
        result = Allocate(buffer, result)
    return result


def _joined(end: For, begin: For) -> For:
    """The fused loop; the end of an iteration reads elements before the beginning of the next overwrites them."""
    first, allocated = substitute(end.body, {end.loop_var: begin.loop_var}), list[Buffer]()
    steps = list(statements_of(begin.body, allocated))
    at = next((i for i, s in enumerate(steps) if not are_independent([s], first)), None)
    if at is None or not have_equal_ranges(first, steps[at]):
        return begin.replace(body=ops.seq(first, begin.body))
    inner = steps[at]
    assert isinstance(first, For) and isinstance(inner, For)
    if not can_fuse(first, inner):
        return begin.replace(body=ops.seq(first, begin.body))
    body = ops.seq(*steps[:at], _joined(first, inner), *steps[at + 1 :])
    for buffer in reversed(allocated):
        body = Allocate(buffer, body)
    return begin.replace(body=body)


def overlap_iterations(func: PrimFunc) -> PrimFunc:
    """The function with the iterations of marked loops overlapping: see `OverlapIterations`."""
    return func.with_body(_Overlapper().visit(func.body))


class OverlapIterations(FunctionPass):
    """Under loops with the pragma "overlap_iterations" the last inner loop is fused with the next iteration's first.

    Where one stores results and the other reads inputs, loads and stores overlap, and arithmetic of the one hides the
    latency of the other. The loop stays as it is where the two don't have the same constant extent, or access the same
    memory other than in disjoint parts per iteration. Buffers must be flat.
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return overlap_iterations(func)
