"""Software pipelining: buffers that a loop fills are filled several iterations ahead, by copies that run meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relayc.te.errors import LoweringError
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, PrimExpr
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, Evaluate, For, IfThenElse, SeqStmt, Stmt
from relayc.te.tir.substitute import fresh_copy

__all__ = [
    "ASYNC_SCOPE",
    "EXPLICIT_SYNC",
    "FILL_BEHIND",
    "PIPELINE_SCOPE",
    "InjectSoftwarePipeline",
    "inject_software_pipeline",
]

PIPELINE_SCOPE = "pipeline_scope"
"""Attribute around the statement that fills a buffer (the subject) in a loop; its value is the number of stages."""
FILL_BEHIND = "fill_behind"
"""Attribute inside "pipeline_scope": an iteration starts copies after using its own, rather than before."""
ASYNC_SCOPE = "async_scope"
"""Attribute around copies that need not be complete before `async_wait` is called."""
EXPLICIT_SYNC = "explicit_sync"
"""Attribute of a shared buffer (the subject) whose accesses in the body are ordered by explicit barriers."""


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
    """The body of a pipelined loop: the fills of marked buffers, their uses, and other allocations."""

    fills: Sequence[AttrStmt]
    uses: Sequence[Stmt]
    allocated: Sequence[Buffer]

    @property
    def filled(self) -> list[Buffer]:
        return [fill.subject for fill in self.fills]


class _Ring:
    """The buffers that a loop fills, each as a ring of `stages` copies."""

    def __init__(self, loop: For, parts: _Parts) -> None:
        stages = ops.as_int(parts.fills[0].value)
        if stages is None or any(ops.as_int(fill.value) != stages for fill in parts.fills):
            raise LoweringError(f"buffers {', '.join(b.name for b in parts.filled)} are filled in one loop and "
                                "pipelined differently; give all the same number of stages")  # fmt: skip
        self.loop, self.parts, self.stages = loop, parts, stages
        self.end = ops.add(loop.min, loop.extent)
        self.wide = {b: b.with_(shape=(ops.as_dim(ops.mul(b.shape[0], stages)),)) for b in parts.filled}
        self.shared = any(b.scope.startswith("shared") for b in parts.filled)
        self.behind = all(_is_behind(fill) for fill in parts.fills)

    def slots(self, body: Stmt, position: PrimExpr) -> Stmt:
        """`body` with buffers replaced by the slots of the iteration at `position`."""
        return _ToSlots(self.wide, _slot(ops.sub(position, self.loop.min), self.stages)).visit(body)

    def fill(self, body: Stmt, position: PrimExpr) -> Stmt:
        """The copies `body` for the iteration at `position`, if there is one."""
        copies = self.slots(fresh_copy(body, {self.loop.loop_var: position}), position)
        there = ops.less(position, self.end)
        if not self.shared:
            return _if(there, copies)
        asynchronous = AttrStmt(ASYNC_SCOPE, None, ops.const(1), copies)
        return ops.seq(_if(there, asynchronous), Evaluate(ops.call_intrin("int32", "async_commit")))

    def await_next(self) -> Stmt:
        """Wait for the oldest copies in flight, then for all threads: writers of this slot and readers of the next."""
        if not self.shared:
            return ops.no_op()
        wait = ops.call_intrin("int32", "async_wait", self.stages - 2)
        return ops.seq(Evaluate(wait), _barrier())

    def following(self) -> PrimExpr:
        """The iteration after the current one; for the last one any whose slot has been filled."""
        after, count = ops.add(self.loop.loop_var, 1), ops.as_int(self.loop.extent)
        is_full = count is not None and count >= self.stages
        return after if is_full else ops.minimum(after, ops.sub(self.end, 1))

    def around(self, body: Stmt) -> Stmt:
        """The memory of the ring around `body`."""
        for buffer in reversed(self.parts.filled):
            if buffer.scope.startswith("shared"):
                body = AttrStmt(EXPLICIT_SYNC, self.wide[buffer], ops.const(1), body)
            body = Allocate(self.wide[buffer], body)
        return body

    def others(self, body: Stmt) -> Stmt:
        """The other memory of an iteration around `body`."""
        for buffer in reversed([b for b in self.parts.allocated if b not in self.wide]):
            body = Allocate(buffer, body)
        return body


class _Injector(Mutator):
    def __init__(self) -> None:
        self.serial_loops = 0

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        """Drop a mark that no surrounding loop could use."""
        new = node.rebuild(self.visit)
        return new.body if node.key in (PIPELINE_SCOPE, FILL_BEHIND) else new

    def visit_For(self, node: For) -> Stmt:
        parts = _parts(node.body)
        repeated = self.serial_loops > 0
        self.serial_loops += 1
        new = node.rebuild(self.visit) if parts is None else self._pipelined(_Ring(node, parts), repeated)
        self.serial_loops -= 1
        return new

    def _visited(self, stmts: Sequence[Stmt]) -> Stmt:
        return ops.seq([self.visit(s) for s in stmts])

    def _pipelined(self, ring: _Ring, repeated: bool) -> Stmt:
        """first fills; for k: { wait; barrier; the fill `stages` - 1 ahead; use(k) }"""
        loop, k = ring.loop, ring.loop.loop_var
        copies = self._visited([fill.body for fill in ring.parts.fills])
        first = [ring.fill(copies, ops.add(loop.min, i)) for i in range(ring.stages - 1)]
        if repeated and ring.shared:
            first.insert(0, _barrier())
        ahead = ring.fill(copies, ops.add(k, ring.stages - 1))
        inside = _registers_inside(ring.parts)
        if inside is not None:
            return ring.around(self._carried_over(ring, inside, first, ahead))
        use = ring.slots(self._visited(ring.parts.uses), k)
        parts = (use, ahead) if ring.behind else (ahead, use)
        body = ring.others(ops.seq(ring.await_next(), *parts))
        return ring.around(ops.seq(*first, loop.replace(body=body)))

    def _carried_over(self, ring: _Ring, inside: _Ring, first: Sequence[Stmt], ahead: Stmt) -> Stmt:
        """A loop whose body is a loop over registers: its first registers are filled by the iteration before.

        So tensor cores have work while threads wait at the barrier. Written out over i = 0 ... n - 1, without the end:

            first fills; wait; barrier; registers(first, 0)
            for k: { registers(k, 1); fill ahead; use(k, 0); ...
                     wait; barrier; registers(k + 1, 0); use(k, n - 1) }

        After the last iteration the registers are filled from an old slice and not used.
        """
        k, low, count = ring.loop.loop_var, inside.loop.min, ops.as_int(inside.loop.extent)
        assert count is not None
        load = self._visited([fill.body for fill in inside.parts.fills])
        use = self._visited(inside.parts.uses)

        def registers(position: PrimExpr, i: int) -> Stmt:
            filled = inside.slots(fresh_copy(load, {inside.loop.loop_var: ops.add(low, i)}), ops.add(low, i))
            return ring.slots(fresh_copy(filled, {k: position}), position)

        body: list[Stmt] = []
        for i in range(count):
            is_last = i == count - 1
            body += [ring.await_next()] if is_last else []
            body.append(registers(ring.following(), 0) if is_last else registers(k, i + 1))
            body += [ahead] if i == 0 else []
            used = inside.slots(fresh_copy(use, {inside.loop.loop_var: ops.add(low, i)}), ops.add(low, i))
            body.append(inside.others(ring.slots(used, k)))
        loop = ring.loop.replace(body=ring.others(ops.seq(body)))
        return inside.around(ops.seq(*first, ring.await_next(), registers(ring.loop.min, 0), loop))


def _registers_inside(parts: _Parts) -> _Ring | None:
    """The register ring of the only loop that uses what `parts` fill, if it wraps around exactly in each iteration."""
    loop = parts.uses[0] if len(parts.uses) == 1 else None
    inner = _parts(loop.body) if isinstance(loop, For) else None
    if not isinstance(loop, For) or inner is None:
        return None
    ring, count = _Ring(loop, inner), ops.as_int(loop.extent)
    return ring if not ring.shared and ring.stages == 2 and count is not None and count % 2 == 0 else None


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


def _is_behind(fill: AttrStmt) -> bool:
    return isinstance(fill.body, AttrStmt) and fill.body.key == FILL_BEHIND


def _slot(step: PrimExpr, stages: int) -> PrimExpr:
    return ops.floormod(step, ops.make_const(step.dtype, stages))


def _if(condition: PrimExpr, body: Stmt) -> Stmt:
    known = ops.as_int(condition)
    return IfThenElse(condition, body) if known is None else body if known else ops.no_op()


def _barrier() -> Stmt:
    return Evaluate(ops.call_intrin("int32", "storage_sync", "shared"))


def inject_software_pipeline(func: PrimFunc) -> PrimFunc:
    """The function with marked buffers filled ahead: see `InjectSoftwarePipeline`."""
    return func.with_body(_Injector().visit(func.body))


class InjectSoftwarePipeline(FunctionPass):
    """Buffers marked "pipeline_scope" become rings of `stages` copies, filled `stages` - 1 iterations ahead.

    Each iteration waits for its own copy to be complete (`async_wait` leaves the `stages` - 2 newest groups of copies
    in flight), then a barrier makes it visible to all threads and marks the slot read an iteration ago as free, and the
    next copies are started ("async_scope", closed by `async_commit`), before the iteration uses its own or, where all
    marks say "fill_behind", after that. All marked buffers of a loop share the groups. Without asynchronous copies the
    same code is correct with plain ones. Rings outside shared memory need neither. Where a shared ring is used only by
    a loop that is pipelined itself, with two stages outside shared memory and an even number of iterations, the inner
    ring is filled ahead across iterations of the outer loop, too. Buffers must be flat. Raises LoweringError for a
    buffer that is filled from what the loop computes. (TVM: `InjectSoftwarePipeline`.)
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return inject_software_pipeline(func)
