"""Copies in "async_scope" become asynchronous ones, which bypass registers."""

from __future__ import annotations

from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import Broadcast, BufferLoad, Call, FloatImm, IntImm, PrimExpr, Ramp, Select
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.passes.inject_software_pipeline import ASYNC_SCOPE
from relayc.te.tir.stmt import AttrStmt, BufferStore, Evaluate, Stmt

__all__ = ["COPY_BYTES", "InjectAsyncCopy", "inject_async_copy"]

COPY_BYTES = (4, 8, 16)
"""Bytes that one asynchronous copy can transfer (PTX: `cp.async`)."""


class _Injector(Mutator):
    """Rewrites stores; outside "async_scope" nothing changes."""

    def __init__(self) -> None:
        self.inside = False

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.key != ASYNC_SCOPE:
            return node.rebuild(self.visit)
        outer, self.inside = self.inside, True
        body = self.visit(node.body)
        self.inside = outer
        return body

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        if not self.inside or node.predicate is not None or not node.buffer.scope.startswith("shared"):
            return node
        condition, load = _guarded_load(node.value)
        if load is None or load.buffer.scope not in ("", "global") or load.predicate is not None:
            return node
        nbytes = load.dtype.nbytes
        target, source = _first(node.buffer, node.indices), _first(load.buffer, load.indices)
        if nbytes not in COPY_BYTES or target is None or source is None:
            return node
        copy = ops.call_intrin("int32", "async_copy", target, source, nbytes, condition)
        return Evaluate(copy, span=node.span)


def _guarded_load(value: PrimExpr) -> tuple[PrimExpr, BufferLoad | None]:
    """`value` as (condition, load), zero where the condition fails; the load is None for any other value."""
    conditions: list[PrimExpr] = []
    while True:
        if isinstance(value, Call) and value.op == "if_then_else":
            condition, inner, other = value.args
        elif isinstance(value, Select):
            condition, inner, other = value.condition, value.true_value, value.false_value
        else:
            break
        if condition.dtype.lanes > 1 or not _is_zero(other):
            return ops.const(True), None
        conditions.append(condition)
        value = inner
    return ops.all(*conditions), value if isinstance(value, BufferLoad) else None


def _is_zero(value: PrimExpr) -> bool:
    if isinstance(value, Broadcast):
        value = value.value
    return isinstance(value, IntImm | FloatImm) and value.value == 0


def _first(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> PrimExpr | None:
    """The address of the first of adjacent elements; None when they are not adjacent."""
    if len(indices) != 1:
        return None
    index = indices[0]
    if isinstance(index, Ramp):
        if ops.as_int(index.stride) != 1:
            return None
        index = index.base
    elif index.dtype.lanes > 1:
        return None
    return ops.call_intrin("handle", "address_of", BufferLoad(buffer, (index,)))


def inject_async_copy(func: PrimFunc) -> PrimFunc:
    """The function with asynchronous copies: see `InjectAsyncCopy`."""
    return func.with_body(_Injector().visit(func.body))


class InjectAsyncCopy(FunctionPass):
    """Stores in "async_scope" of 4, 8 or 16 bytes read from global memory become `async_copy`; the attribute goes.

    The elements must lie together, in memory aligned to the copy's size, as everywhere for vectors. Where a condition
    of the load fails zeros are written. Other stores stay synchronous. Buffers must be flat and loops vectorized. (TVM:
    `InjectPTXAsyncCopy`.)
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return inject_async_copy(func)
