"""Buffers become one-dimensional: strides and element offsets go into the index."""

from __future__ import annotations

from relayc.te.arith import Analyzer
from relayc.te.dtype import INT64
from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, Dim, PrimExpr
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore

__all__ = ["Flatten", "flatten"]

_INT32_LIMIT = 1 << 31


def _strides(buffer: Buffer) -> tuple[Dim, ...]:
    if buffer.strides is not None:
        return buffer.strides
    strides: list[Dim] = [1] * len(buffer.shape)
    for axis in range(len(buffer.shape) - 2, -1, -1):
        strides[axis] = ops.product((strides[axis + 1], buffer.shape[axis + 1]))
    return tuple(strides)


def _span(buffer: Buffer, strides: tuple[Dim, ...]) -> Dim:
    """The number of elements from the pointer to the end of the last element, element offset included."""
    if buffer.strides is None:
        span = ops.product(buffer.shape)
    else:
        span = 1
        for extent, stride in zip(buffer.shape, strides, strict=True):
            span = ops.as_dim(ops.add(span, ops.mul(ops.sub(extent, 1), stride)))
    return ops.as_dim(ops.add(span, buffer.elem_offset))


class _Flattener(Mutator):
    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.flat: dict[Buffer, tuple[Buffer, tuple[Dim, ...]]] = {}

    def _flatten(self, buffer: Buffer) -> tuple[Buffer, tuple[Dim, ...]]:
        known = self.flat.get(buffer)
        if known is None:
            strides = _strides(buffer)
            is_flat = len(buffer.shape) == 1 and strides == (1,) and buffer.elem_offset == 0
            new = buffer if is_flat else buffer.with_(shape=(_span(buffer, strides),), strides=None, elem_offset=0)
            known = self.flat[buffer] = new, strides
        return known

    def _element(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[Buffer, tuple[PrimExpr, ...]]:
        flat, strides = self._flatten(buffer)
        if flat is buffer:
            return flat, indices
        wide = isinstance(flat.shape[0], int) and flat.shape[0] >= _INT32_LIMIT
        index = ops.convert(buffer.elem_offset)
        for value, stride in zip(indices, strides, strict=True):
            index = ops.add(index, ops.mul(ops.cast(INT64, value) if wide else value, stride))
        return flat, (self.analyzer.simplify(index),)

    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        new = node.rebuild(self.visit)
        buffer, indices = self._element(new.buffer, new.indices)
        return new if buffer is new.buffer else BufferLoad(buffer, indices, new.predicate, span=new.span)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        new = node.rebuild(self.visit)
        buffer, indices = self._element(new.buffer, new.indices)
        return new if buffer is new.buffer else BufferStore(buffer, new.value, indices, new.predicate, span=new.span)

    def visit_Allocate(self, node: Allocate) -> Allocate:
        flat, _ = self._flatten(node.buffer)
        body = self.visit(node.body)
        return node if flat is node.buffer and body is node.body else Allocate(flat, body, span=node.span)

    def visit_AttrStmt(self, node: AttrStmt) -> AttrStmt:
        new = node.rebuild(self.visit)
        if not isinstance(node.subject, Buffer):
            return new
        flat, _ = self._flatten(node.subject)
        return new if flat is node.subject else new.replace(subject=flat)


def flatten(func: PrimFunc) -> PrimFunc:
    """The function over one-dimensional buffers, each with one index.

    The parameters' buffers keep their shapes in `buffer_map`, for the checks of arguments; the body uses flat buffers
    of the same pointer. (TVM: `FlattenBuffer`.)
    """
    return func.with_body(_Flattener().visit(func.body))


class Flatten(FunctionPass):
    """Buffers of any shape become one-dimensional ones with one index."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return flatten(func)
