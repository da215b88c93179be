"""Which results of a function are stored past the caches.

A result larger than the caches leaves them before anyone reads it. Stored the usual way, each of its lines is first
read from memory: a third of what a copy moves. Stores of whole lines can do without ("non-temporal"), to addresses that
are aligned to a line. Memory of a caller need not be, so a function with such results has a twin for when it is.
"""

from __future__ import annotations

from backend.llvm.types import element_bytes
from te.ir import collect
from te.tir import Buffer, BufferLoad, BufferStore, Call, PrimFunc, Var

__all__ = ["LINE_BYTES", "streamed_buffers"]

LINE_BYTES = 64
"""What is stored at once is a multiple of this, and so are the addresses."""


def streamed_buffers(function: PrimFunc, larger_than: int) -> frozenset[Var]:
    """The pointers of buffers larger than so many bytes that whole lines are stored to and nothing is read of."""
    if not larger_than:
        return frozenset()
    large = {buffer.data for buffer in function.buffer_map.values() if _nbytes(buffer) > larger_than}
    if not large:
        return frozenset()
    stored = {s.buffer.data for s in collect(function.body, BufferStore) if _covers_lines(s)}
    prefetched = {a.args[0] for a in collect(function.body, Call) if a.op == "address_of"}
    read = {load.buffer.data for load in collect(function.body, BufferLoad) if load not in prefetched}
    return frozenset(large & stored - read)


def _nbytes(buffer: Buffer) -> int:
    size = element_bytes(buffer.dtype)
    for extent in buffer.shape:
        size *= extent if isinstance(extent, int) else 0
    return size


def _covers_lines(store: BufferStore) -> bool:
    lanes = store.indices[-1].dtype.lanes
    return lanes * element_bytes(store.buffer.dtype) % LINE_BYTES == 0
