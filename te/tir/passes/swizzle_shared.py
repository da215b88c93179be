"""XOR swizzle of shared memory: 16-byte parts of a line are permuted, so that equal columns lie in different banks."""

from __future__ import annotations

from relayc.te.arith import Analyzer
from relayc.te.errors import LoweringError
from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, PrimExpr, Ramp
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import BufferStore

__all__ = ["SwizzleShared"]

_PART_BYTES = 16
_PARTS = 8
"""Parts of a line; also the period of the pattern in lines."""


class _Swizzler(Mutator):
    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        load = node.rebuild(self.visit)
        if not node.buffer.swizzled:
            return load
        return BufferLoad(load.buffer, _swizzled(load.buffer, load.indices), load.predicate, span=node.span)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        store = node.rebuild(self.visit)
        if not node.buffer.swizzled:
            return store
        index = _swizzled(store.buffer, store.indices)
        return BufferStore(store.buffer, store.value, index, store.predicate, span=node.span)


def _swizzled(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr]:
    """The swizzled place of a flat index: of one element, or of several within a part."""
    (index,) = indices
    part = _PART_BYTES // buffer.dtype.element.nbytes
    if isinstance(index, Ramp):
        if ops.as_int(index.stride) != 1 or part % index.lanes:
            raise LoweringError(f"{buffer.name} is swizzled, but {index} is no part of {_PART_BYTES} bytes")
        return (Ramp(_place(index.base, part), index.stride, index.lanes),)
    return (_place(index, part),)


def _place(index: PrimExpr, part: int) -> PrimExpr:
    line = ops.floordiv(index, part * _PARTS)
    number = ops.floormod(ops.floordiv(index, part), _PARTS)
    moved = ops.bitwise_xor(number, ops.floormod(line, _PARTS))
    place = ops.add(ops.mul(line, part * _PARTS), ops.mul(moved, part))
    return Analyzer().simplify(ops.add(place, ops.floormod(index, part)))


class SwizzleShared(FunctionPass):
    """Accesses of swizzled buffers use the swizzled places of their elements: part p of line l at p ^ (l % 8).

    Lines have 128 bytes, parts 16; accesses of several elements lie in one part. Buffers must be flat and loops
    vectorized. LoweringError for accesses across parts.
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return func.with_body(_Swizzler().visit(func.body))
