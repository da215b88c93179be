"""Merging of a kernel's shared buffers into one allocation, in which buffers with disjoint lifetimes overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relayc.te.errors import LoweringError
from relayc.te.ir.visitor import Mutator, collect, post_order
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, IterVar, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, For, IfThenElse, LetStmt, SeqStmt, Stmt, While
from relayc.te.tir.substitute import substitute

__all__ = ["ALIGNMENT", "MergeSharedMemory", "merge_shared_memory"]

ALIGNMENT = 128
"""Alignment of every buffer, in bytes: one word of each of the 32 banks."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Allocated bytes: from `start` up to `end`."""

    start: int
    end: int


class _Planner:
    """Gives every shared buffer of a kernel a place. `total` is what the kernel needs."""

    def __init__(self) -> None:
        self.places: dict[Var, int] = {}
        self.total = 0
        self.separate = 0
        """bytes needed if no buffers overlapped"""

    def scope(self, stmt: Stmt, taken: Sequence[_Span]) -> None:
        """Place the buffers allocated in a scope, then those inside its statements; `taken` are live throughout."""
        buffers: list[Buffer] = []
        leaves: list[Stmt] = []
        _linearize(stmt, buffers, leaves)
        lives = {b: _life(b, leaves) for b in buffers}
        placed: list[tuple[_Span, range]] = []
        for buffer in sorted(buffers, key=lambda b: (lives[b].start, -_nbytes(b))):
            life = lives[buffer]
            others = [span for span, other in placed if other.start < life.stop and life.start < other.stop]
            placed.append((self._place(buffer, [*taken, *others]), life))
        for i, leaf in enumerate(leaves):
            inner = [*taken, *[span for span, life in placed if i in life]]
            for part in _inner_scopes(leaf):
                self.scope(part, inner)

    def _place(self, buffer: Buffer, taken: Iterable[_Span]) -> _Span:
        """Place a buffer at the lowest free offset."""
        nbytes = _nbytes(buffer)
        start = 0
        for span in sorted(taken, key=lambda s: s.start):
            if start + nbytes <= span.start:
                break
            start = max(start, _aligned(span.end, buffer.align))
        self.places[buffer.data] = start
        self.total = max(self.total, start + nbytes)
        self.separate = _aligned(self.separate, buffer.align) + nbytes
        return _Span(start, start + nbytes)


def _aligned(offset: int, alignment: int) -> int:
    unit = max(alignment, ALIGNMENT)
    return -(-offset // unit) * unit


def _nbytes(buffer: Buffer) -> int:
    count = ops.product(buffer.shape)
    if not isinstance(count, int):
        raise LoweringError(f"shared memory {buffer.name} of {count} elements: its size has to be constant")
    return max(1, count) * buffer.dtype.element.nbytes * buffer.dtype.lanes


def _is_shared(buffer: Buffer) -> bool:
    return buffer.scope in ("shared", "shared.dyn")


def _linearize(stmt: Stmt, buffers: list[Buffer], leaves: list[Stmt]) -> None:
    """The shared buffers that a scope allocates, and the statements that run in it, in order."""
    if isinstance(stmt, Allocate):
        if _is_shared(stmt.buffer):
            buffers.append(stmt.buffer)
        _linearize(stmt.body, buffers, leaves)
    elif isinstance(stmt, SeqStmt):
        for part in stmt.stmts:
            _linearize(part, buffers, leaves)
    elif isinstance(stmt, LetStmt | AttrStmt):
        _linearize(stmt.body, buffers, leaves)
    else:
        leaves.append(stmt)


def _inner_scopes(leaf: Stmt) -> list[Stmt]:
    if isinstance(leaf, For | While):
        return [leaf.body]
    if isinstance(leaf, IfThenElse):
        return [leaf.then_case] if leaf.else_case is None else [leaf.then_case, leaf.else_case]
    return []


def _life(buffer: Buffer, leaves: Sequence[Stmt]) -> range:
    """The positions of the statements from the first that touches a buffer to the last."""
    touching = [i for i, leaf in enumerate(leaves) if buffer.data in _touched(leaf)]
    return range(touching[0], touching[-1] + 1) if touching else range(0)


def _touched(stmt: Stmt) -> set[Var]:
    return {n.buffer.data for n in post_order(stmt) if isinstance(n, BufferLoad | BufferStore)}


class _Merger(Mutator):
    def __init__(self, static_bytes: int) -> None:
        self.static_bytes = static_bytes

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.key != "thread_extent" or not isinstance(node.subject, IterVar):
            return node.rebuild(self.visit)
        planner = _Planner()
        planner.scope(node, [])
        dynamic = any(n.buffer.scope == "shared.dyn" for n in collect(node, Allocate))
        if not dynamic and planner.separate <= min(planner.total, self.static_bytes):
            return node
        scope = "shared.dyn" if dynamic or planner.total > self.static_bytes else "shared"
        return _merged(node, planner, scope)


def _merged(kernel: AttrStmt, planner: _Planner, scope: str) -> Stmt:
    """The kernel with all shared buffers as views of one allocation."""
    memory = Buffer("shared_memory", (planner.total,), "uint8", scope=scope, align=ALIGNMENT)
    accesses = [n.buffer for n in post_order(kernel) if isinstance(n, BufferLoad | BufferStore)]
    allocated = [n.buffer for n in collect(kernel, Allocate)]
    views: dict[Buffer, Buffer] = {}
    for buffer in dict.fromkeys([*accesses, *allocated]):
        place = planner.places.get(buffer.data)
        if place is not None:
            start = ops.add(buffer.elem_offset, place // buffer.dtype.element.nbytes)
            views[buffer] = buffer.with_(data=memory.data, elem_offset=ops.as_dim(start), scope=scope, align=ALIGNMENT)
    body = substitute(_DropShared().visit(kernel), {}, views)
    return _inside_threads(body, memory)


def _inside_threads(stmt: Stmt, memory: Buffer) -> Stmt:
    """`memory` allocated inside all thread axes that stand around the whole kernel."""
    if isinstance(stmt, AttrStmt) and stmt.key == "thread_extent":
        return AttrStmt(stmt.key, stmt.subject, stmt.value, _inside_threads(stmt.body, memory), span=stmt.span)
    return Allocate(memory, stmt)


class _DropShared(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_Allocate(self, node: Allocate) -> Stmt:
        new = node.rebuild(self.visit)
        return new.body if _is_shared(node.buffer) else new


def merge_shared_memory(func: PrimFunc, static_bytes: int = 48 << 10) -> PrimFunc:
    """The function with the shared memory of its kernels merged: see `MergeSharedMemory`."""
    return func.with_body(_Merger(static_bytes).visit(func.body))


@dataclass(frozen=True)
class MergeSharedMemory(FunctionPass):
    """The shared buffers of a kernel become views of one allocation, where that is needed or saves memory.

    The allocation has scope "shared.dyn" (its size is given at launch) when one of the buffers has, or when it is
    larger than `static_bytes`; "shared" otherwise. Buffers overlap when the statements from the first to the last that
    touches one leave the other alone; a buffer allocated in a loop lives in that loop. Barriers come after this pass:
    `ThreadSync` sees that the bytes are the same. Raises LoweringError for sizes that are not constant. (TVM:
    `MergeSharedMemoryAllocations`.)
    """

    static_bytes: int = 48 << 10

    def function(self, func: PrimFunc) -> PrimFunc:
        return merge_shared_memory(func, self.static_bytes)
