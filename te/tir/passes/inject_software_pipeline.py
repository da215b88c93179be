"""Buffers that a loop fills are filled several iterations ahead, by copies that run meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from te.errors import LoweringError
from te.ir.visitor import Mutator, post_order
from te.tir import ops
from te.tir.buffer import Buffer
from te.tir.expr import BufferLoad, PrimExpr
from te.tir.function import PrimFunc
from te.tir.passes.base import FunctionPass
from te.tir.stmt import Allocate, AttrStmt, BufferStore, Evaluate, For, IfThenElse, SeqStmt, Stmt
from te.tir.substitute import fresh_copy

__all__ = ["ASYNC_SCOPE", "EXPLICIT_SYNC", "PIPELINE_SCOPE", "InjectSoftwarePipeline", "inject_software_pipeline"]

PIPELINE_SCOPE = "pipeline_scope"
"""Attribute around what fills a buffer (the subject) in a loop; its value is the number of copies of the buffer."""
ASYNC_SCOPE = "async_scope"
"""Attribute around copies that need not be complete before `async_wait` is called."""
EXPLICIT_SYNC = "explicit_sync"
"""Attribute of a shared buffer (the subject) whose accesses in the body are ordered by barriers that stand there."""


class _ToSlots(Mutator):
    """Sends the accesses of buffers to one of their copies."""

    def __init__(self, wide: Mapping[Buffer, Buffer], slot: PrimExpr) -> None:
        self.wide, self.slot = wide, slot

    def _index(self, buffer: Buffer, index: PrimExpr) -> tuple[PrimExpr]:
        return (ops.add(index, ops.mul(self.slot, buffer.shape[0])),)

    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        load = node.rebuild(self.visit)
        wide = self.wide.get(node.buffer)
        if wide is None:
            return load
        return BufferLoad(wide, self._index(node.buffer, load.indices[0]), load.predicate, span=node.span)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        store = node.rebuild(self.visit)
        wide = self.wide.get(node.buffer)
        if wide is None:
            return store
        index = self._index(node.buffer, store.indices[0])
        return BufferStore(wide, store.value, index, store.predicate, span=node.span)


@dataclass(frozen=True)
class _Parts:
    """The body of a pipelined loop: what fills the marked buffers, what uses them, other memory."""

    fills: Sequence[AttrStmt]
    uses: Sequence[Stmt]
    allocated: Sequence[Buffer]

    @property
    def filled(self) -> list[Buffer]:
        return [fill.subject for fill in self.fills]


class _Injector(Mutator):
    def __init__(self) -> None:
        self.serial_loops = 0

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        """A mark that no loop around could use is dropped."""
        new = node.rebuild(self.visit)
        return new.body if node.key == PIPELINE_SCOPE else new

    def visit_For(self, node: For) -> Stmt:
        parts = _parts(node.body)
        repeated = self.serial_loops > 0
        self.serial_loops += 1
        new = node.rebuild(self.visit) if parts is None else self._pipelined(node, parts, repeated)
        self.serial_loops -= 1
        return new

    def _pipelined(self, loop: For, parts: _Parts, repeated: bool) -> Stmt:
        """first fills; for k: { wait; barrier; the fill `stages` - 1 ahead; use(k) }"""
        stages = ops.as_int(parts.fills[0].value)
        if stages is None or any(ops.as_int(fill.value) != stages for fill in parts.fills):
            raise LoweringError(f"buffers {', '.join(b.name for b in parts.filled)} are filled in one loop and "
                                "pipelined differently; give all the same number of stages")  # fmt: skip
        wide = {b: b.with_(shape=(ops.as_dim(ops.mul(b.shape[0], stages)),)) for b in parts.filled}
        k = loop.loop_var
        end = ops.add(loop.min, loop.extent)
        body = ops.seq([self.visit(fill.body) for fill in parts.fills])

        def fill(position: PrimExpr) -> Stmt:
            slot = _slot(ops.sub(position, loop.min), stages)
            copies = _ToSlots(wide, slot).visit(fresh_copy(body, {k: position}))
            asynchronous = AttrStmt(ASYNC_SCOPE, None, ops.const(1), copies)
            commit = Evaluate(ops.call_intrin("int32", "async_commit"))
            return ops.seq(_if(ops.less(position, end), asynchronous), commit)

        first = [fill(ops.add(loop.min, i)) for i in range(stages - 1)]
        if repeated:
            first.insert(0, _barrier(parts.filled[0]))
        use = _ToSlots(wide, _slot(ops.sub(k, loop.min), stages)).visit(ops.seq([self.visit(s) for s in parts.uses]))
        wait = Evaluate(ops.call_intrin("int32", "async_wait", stages - 2))
        inner = ops.seq(wait, _barrier(parts.filled[0]), fill(ops.add(k, stages - 1)), use)
        for other in reversed(parts.allocated):
            if other not in wide:
                inner = Allocate(other, inner)
        result = ops.seq(*first, loop.replace(body=inner))
        for buffer in reversed(parts.filled):
            if buffer.scope.startswith("shared"):
                result = AttrStmt(EXPLICIT_SYNC, wide[buffer], ops.const(1), result)
            result = Allocate(wide[buffer], result)
        return result


def _parts(body: Stmt) -> _Parts | None:
    """The parts of a loop's body, or None when it has no mark directly inside."""
    allocated: list[Buffer] = []
    stmts: list[Stmt] = []
    _flatten(body, allocated, stmts)
    fills = [s for s in stmts if isinstance(s, AttrStmt) and s.key == PIPELINE_SCOPE and s.subject in allocated]
    if not fills:
        return None
    uses = [s for s in stmts if s not in fills]
    changed = {n.buffer.data for s in uses for n in post_order(s) if isinstance(n, BufferStore)}
    inside = {b.data for b in allocated}
    for fill in fills:
        own = {n.buffer.data for n in post_order(fill) if isinstance(n, Allocate)} | {fill.subject.data}
        reads = {n.buffer.data for n in post_order(fill) if isinstance(n, BufferLoad)} - own
        if reads & (changed | inside):
            raise LoweringError(f"buffer {fill.subject.name} is pipelined, but is filled from what the same iteration "
                                "computes; only what does not depend on that can be fetched ahead")  # fmt: skip
    return _Parts(fills, uses, allocated)


def _flatten(stmt: Stmt, allocated: list[Buffer], stmts: list[Stmt]) -> None:
    if isinstance(stmt, Allocate):
        allocated.append(stmt.buffer)
        _flatten(stmt.body, allocated, stmts)
    elif isinstance(stmt, SeqStmt):
        for s in stmt.stmts:
            _flatten(s, allocated, stmts)
    else:
        stmts.append(stmt)


def _slot(step: PrimExpr, stages: int) -> PrimExpr:
    return ops.floormod(step, ops.make_const(step.dtype, stages))


def _if(condition: PrimExpr, body: Stmt) -> Stmt:
    known = ops.as_int(condition)
    return IfThenElse(condition, body) if known is None else body if known else ops.no_op()


def _barrier(buffer: Buffer) -> Stmt:
    if not buffer.scope.startswith("shared"):
        return ops.no_op()
    return Evaluate(ops.call_intrin("int32", "storage_sync", "shared"))


def inject_software_pipeline(func: PrimFunc) -> PrimFunc:
    """The function with marked buffers filled ahead: see `InjectSoftwarePipeline`."""
    return func.with_body(_Injector().visit(func.body))


class InjectSoftwarePipeline(FunctionPass):
    """Buffers marked "pipeline_scope" become rings of `stages` copies, filled `stages` - 1 iterations ahead.

    Each iteration waits for its own copy to be complete (`async_wait` lets the `stages` - 2 newest groups of copies go
    on), then a barrier makes it visible to all threads and tells that the copy read an iteration ago is free, and the
    next copies are started ("async_scope", closed by `async_commit`). All marked buffers of a loop share the groups. On
    a device without asynchronous copies the same code is right with plain ones. Buffers must be flat. Raises
    LoweringError for a buffer that is filled from what the loop computes. (TVM: `InjectSoftwarePipeline`.)
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return inject_software_pipeline(func)
