"""A buffer marked for double buffering is filled one iteration ahead."""

from __future__ import annotations

from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, PrimExpr
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt
from relayc.te.tir.substitute import fresh_copy

__all__ = ["InjectDoubleBuffer", "inject_double_buffer"]

_KEY = "double_buffer_scope"


class _ToSlot(Mutator):
    """Sends the accesses of a buffer to one half of a buffer of twice its size."""

    def __init__(self, old: Buffer, new: Buffer, slot: PrimExpr) -> None:
        self.old, self.new = old, new
        self.offset = ops.mul(slot, old.shape[0])

    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        load = node.rebuild(self.visit)
        if node.buffer is not self.old:
            return load
        return BufferLoad(self.new, (ops.add(load.indices[0], self.offset),), load.predicate, span=node.span)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        store = node.rebuild(self.visit)
        if node.buffer is not self.old:
            return store
        index = ops.add(store.indices[0], self.offset)
        return BufferStore(self.new, store.value, (index,), store.predicate, span=node.span)


class _Injector(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        """Drop a mark that no surrounding loop could use: a single buffer is equivalent."""
        new = node.rebuild(self.visit)
        return new.body if node.key == _KEY else new

    def visit_For(self, node: For) -> Stmt:
        if node.kind is not ForKind.SERIAL:
            return node.rebuild(self.visit)
        allocated: list[Buffer] = []
        stmts: list[Stmt] = []
        _flatten(node.body, allocated, stmts)
        for position, stmt in enumerate(stmts):
            if isinstance(stmt, AttrStmt) and stmt.key == _KEY and stmt.subject in allocated:
                ahead = _fill_ahead(node, allocated, stmts, position)
                if ahead is not None:
                    return self.visit(ahead)
        return node.rebuild(self.visit)


def _flatten(stmt: Stmt, allocated: list[Buffer], stmts: list[Stmt]) -> None:
    if isinstance(stmt, Allocate):
        allocated.append(stmt.buffer)
        _flatten(stmt.body, allocated, stmts)
    elif isinstance(stmt, SeqStmt):
        for s in stmt.stmts:
            _flatten(s, allocated, stmts)
    else:
        stmts.append(stmt)


def _fill_ahead(loop: For, allocated: list[Buffer], stmts: list[Stmt], position: int) -> Stmt | None:
    """fill(first); for k: { if there is a next one: fill(next); use(k) }, or None when the fill can't run ahead"""
    mark = stmts[position]
    assert isinstance(mark, AttrStmt)
    buffer, fill = mark.subject, mark.body
    rest = stmts[:position] + stmts[position + 1 :]
    written = {n.buffer.data for s in rest for n in post_order(s) if isinstance(n, BufferStore)}
    reads = {n.buffer.data for n in post_order(fill) if isinstance(n, BufferLoad)} - {buffer.data}
    own = {n.buffer.data for n in post_order(fill) if isinstance(n, Allocate)} | {buffer.data}
    if any(isinstance(n, BufferStore) and n.buffer.data not in own for n in post_order(fill)):
        return None  # it also fills buffers that are not doubled
    used_before = any(_uses(s, buffer) for s in stmts[:position])
    if reads & (written | {b.data for b in allocated}) or used_before or len(buffer.shape) != 1:
        return None
    double = buffer.with_(shape=(ops.as_dim(ops.mul(buffer.shape[0], 2)),))
    k, two = loop.loop_var, ops.make_const(loop.loop_var.dtype, 2)
    step = ops.sub(k, loop.min)
    following, end = ops.add(k, 1), ops.add(loop.min, loop.extent)
    first = fresh_copy(_ToSlot(buffer, double, ops.make_const(k.dtype, 0)).visit(fill), {k: loop.min})
    next_slot = ops.floormod(ops.add(step, 1), two)
    ahead = _ToSlot(buffer, double, next_slot).visit(fresh_copy(fill, {k: following}))
    use = _ToSlot(buffer, double, ops.floormod(step, two)).visit(ops.seq(rest))
    body = ops.seq(IfThenElse(ops.less(following, end), ahead), use)
    for other in reversed(allocated):
        if other is not buffer:
            body = Allocate(other, body)
    if ops.as_int(loop.extent) is None:
        first = IfThenElse(ops.greater(loop.extent, 0), first)
    return Allocate(double, ops.seq(first, loop.replace(body=body)))


def _uses(stmt: Stmt, buffer: Buffer) -> bool:
    return any(isinstance(n, BufferLoad | BufferStore) and n.buffer is buffer for n in post_order(stmt))


def inject_double_buffer(func: PrimFunc) -> PrimFunc:
    """The function with marked buffers doubled and filled for the next iteration while this one is used.

    A mark stands directly in the loop whose iterations alternate; where the fill reads what the loop writes, it stays
    in place. Buffers must be flat. (TVM: `InjectDoubleBuffer`.)
    """
    return func.with_body(_Injector().visit(func.body))


class InjectDoubleBuffer(FunctionPass):
    """Buffers marked "double_buffer_scope" get two halves, used alternately."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return inject_double_buffer(func)
