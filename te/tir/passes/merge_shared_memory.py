"""The dynamic shared memory of a kernel is one buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from te.errors import LoweringError
from te.ir.visitor import Mutator, collect
from te.tir import ops
from te.tir.buffer import Buffer
from te.tir.expr import BufferLoad, IterVar, PrimExpr
from te.tir.function import PrimFunc
from te.tir.passes.base import FunctionPass
from te.tir.stmt import Allocate, AttrStmt, BufferStore, Stmt

__all__ = ["MergeSharedMemory", "merge_shared_memory"]

_SCOPE = "shared.dyn"
_ALIGN = 128
"""Bytes that each part is aligned to: a row of all banks."""


class _ToParts(Mutator):
    """Sends the accesses of buffers to views of the whole and drops their allocations."""

    def __init__(self, parts: Mapping[Buffer, Buffer]) -> None:
        self.parts = parts

    def visit_Allocate(self, node: Allocate) -> Stmt:
        new = node.rebuild(self.visit)
        return new.body if node.buffer in self.parts else new

    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        load, part = node.rebuild(self.visit), self.parts.get(node.buffer)
        return load if part is None else load.replace(buffer=part)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        store, part = node.rebuild(self.visit), self.parts.get(node.buffer)
        return store if part is None else store.replace(buffer=part)


class _Merger(Mutator):
    """Inside the innermost of the thread axes that a kernel begins with stands the one allocation."""

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if not _is_thread_axis(node):
            return node.rebuild(self.visit)
        inner = self.visit(node.body) if _is_thread_axis(node.body) else _merged(node.body)
        return node if inner is node.body else AttrStmt(node.key, node.subject, node.value, inner, span=node.span)


def _is_thread_axis(stmt: Stmt) -> bool:
    return isinstance(stmt, AttrStmt) and stmt.key == "thread_extent" and isinstance(stmt.subject, IterVar)


def _merged(body: Stmt) -> Stmt:
    buffers = [n.buffer for n in collect(body, Allocate) if n.buffer.scope == _SCOPE]
    if len(buffers) < 2:
        return body
    whole = Buffer("dynamic", (sum([_room(b) for b in buffers]),), "uint8", scope=_SCOPE, align=_ALIGN)
    parts: dict[Buffer, Buffer] = {}
    start = 0
    for buffer in buffers:
        parts[buffer] = buffer.with_(data=whole.data, elem_offset=start // buffer.dtype.nbytes)
        start += _room(buffer)
    return Allocate(whole, _ToParts(parts).visit(body))


def _room(buffer: Buffer) -> int:
    """Bytes of a buffer, rounded up so that the next one is aligned."""
    count = ops.as_int(ops.product(buffer.shape))
    if count is None or len(buffer.shape) != 1:
        raise LoweringError(f"shared memory {buffer.name} of shape {tuple(buffer.shape)}: expected one constant size")
    return -(-count * buffer.dtype.nbytes // _ALIGN) * _ALIGN


def merge_shared_memory(func: PrimFunc) -> PrimFunc:
    """The function with one dynamic shared buffer for each kernel: see `MergeSharedMemory`."""
    return func.with_body(_Merger().visit(func.body))


@dataclass(frozen=True)
class MergeSharedMemory(FunctionPass):
    """All "shared.dyn" buffers of a kernel become parts of one of bytes, which the launch gives the kernel.

    Parts lie side by side, each aligned to 128 bytes. Buffers must be flat and of constant size; barriers are placed
    already. (TVM: `MergeSharedMemoryAllocations`.)
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return merge_shared_memory(func)
