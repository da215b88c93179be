"""Replace loops that fold the lanes of a local vector by horizontal reductions.

A vectorised reduction (rfactor) leaves one partial result per lane, in a small local buffer that a last loop folds::

    for k in range(32): m[0] = max(m[0], partial[k])      ->      m[0] = max(m[0], vector_reduce_max(partial[0:32]))

The loop is a chain of dependent scalar steps and, worse, indexes the buffer by a variable, which keeps it out of
registers in all code before. A tree reduction takes log2(lanes) steps. Sums are reassociated, as they already were by
the split into lanes.
"""

from __future__ import annotations

from typing import Any

from relayc.te.ir import Mutator, structural_equal
from relayc.te.tir import (
    Add,
    BufferLoad,
    BufferStore,
    Call,
    For,
    ForKind,
    IntImm,
    Max,
    Min,
    PrimExpr,
    PrimFunc,
    Stmt,
    ramp,
)
from relayc.te.tir.analysis import free_variables

__all__ = ["fold_lanes"]

_REDUCTIONS: dict[type, str] = {Add: "vector_reduce_add", Max: "vector_reduce_max", Min: "vector_reduce_min"}
_MAX_LANES = 64


def fold_lanes(function: PrimFunc) -> PrimFunc:
    """`function` with the loops that fold lanes of a local buffer replaced by horizontal reductions."""
    return function.with_body(_Folder().visit(function.body))


class _Folder(Mutator):
    def visit_PrimExpr(self, expr: PrimExpr) -> PrimExpr:
        return expr

    def visit_For(self, loop: For) -> Any:
        return _fold(loop) or self.visit_default(loop)


def _fold(loop: For) -> Stmt | None:
    """The loop as one store, or None when it does not fold lanes."""
    extent, store = loop.extent, loop.body
    serial = loop.kind in (ForKind.SERIAL, ForKind.UNROLLED)
    if not (serial and isinstance(extent, IntImm) and 2 <= extent.value <= _MAX_LANES):
        return None
    if not (isinstance(store, BufferStore) and store.predicate is None and isinstance(store.value, Add | Max | Min)):
        return None
    value = store.value
    total, lane = value.a, value.b
    if not (isinstance(total, BufferLoad) and isinstance(lane, BufferLoad) and _is_same_place(total, store)):
        return None
    partial = lane.buffer
    if partial.scope != "local" or partial is store.buffer or lane.dtype.lanes > 1 or lane.predicate is not None:
        return None
    start = _start_of(lane.indices[0], loop) if len(lane.indices) == 1 else None
    if start is None or _uses(total, loop):
        return None
    lanes = BufferLoad(partial, (ramp(start, 1, extent.value),))
    folded = Call(total.dtype, _REDUCTIONS[type(value)], (lanes,))
    return store.replace(value=type(value)(total, folded))


def _is_same_place(total: BufferLoad, store: BufferStore) -> bool:
    unmasked = total.buffer is store.buffer and total.predicate is None
    return unmasked and total.dtype.lanes == 1 and structural_equal(total.indices, store.indices)


def _uses(expr: PrimExpr, loop: For) -> bool:
    return any(var is loop.loop_var for var in free_variables(expr))


def _start_of(index: PrimExpr, loop: For) -> PrimExpr | None:
    """The index in the first iteration if it grows by 1 per iteration, else None."""
    if index is loop.loop_var:
        return loop.min
    if not isinstance(index, Add):
        return None
    for var, rest in ((index.a, index.b), (index.b, index.a)):
        if var is loop.loop_var and not _uses(rest, loop):
            return rest + loop.min
    return None
