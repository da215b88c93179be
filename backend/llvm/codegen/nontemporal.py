"""Selects the results of a function that are written by non-temporal stores.

A result larger than the caches is evicted before it is read, and so is most of one that is written while much more is
read, such as a part of a tensor. With ordinary stores each cache line is first read from memory (write allocate), a
third of the traffic of a copy. Non-temporal stores of whole, aligned cache lines avoid that. A caller's memory may be
unaligned, so a function with such results has a second version for aligned memory.
"""

from __future__ import annotations

from math import gcd

from relayc.backend.llvm.types import element_bytes
from relayc.te.index import largest_extent
from relayc.te.ir import collect
from relayc.te.ir.structural import structural_equal
from relayc.te.tir import (
    Add,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    FloorMod,
    IntImm,
    Mul,
    PrimExpr,
    PrimFunc,
    Sub,
    Var,
)

__all__ = ["LINE_BYTES", "divides", "nontemporal_buffers"]

LINE_BYTES = 64
"""Bytes of a cache line: the granularity and alignment of non-temporal stores."""


def nontemporal_buffers(function: PrimFunc, cache_bytes: int) -> frozenset[Var]:
    """The pointers of large buffers that are written in whole cache lines and not read, given the cache size in bytes.

    Large means at least the cache size, or half of it if the function touches more than twice the cache size in all.
    """
    if not cache_bytes:
        return frozenset()
    sizes = {buffer.data: _nbytes(buffer) for buffer in function.buffer_map.values()}
    least = cache_bytes if sum(sizes.values()) <= 2 * cache_bytes else cache_bytes // 2
    large = {data for data, nbytes in sizes.items() if nbytes >= least}
    if not large:
        return frozenset()
    stored = {s.buffer.data for s in collect(function.body, BufferStore) if _covers_lines(s)}
    prefetched = {a.args[0] for a in collect(function.body, Call) if a.op == "address_of"}
    read = {load.buffer.data for load in collect(function.body, BufferLoad) if load not in prefetched}
    return frozenset(large & stored - read)


def _nbytes(buffer: Buffer) -> int:
    size = element_bytes(buffer.dtype)
    for extent in buffer.shape:
        size *= largest_extent(extent) or 0
    return size


def _covers_lines(store: BufferStore) -> bool:
    lanes = store.indices[-1].dtype.lanes
    return lanes * element_bytes(store.buffer.dtype) % LINE_BYTES == 0


def divides(number: int, index: PrimExpr) -> bool:
    """Is the index a multiple of the number for all values of its variables? Subtracted remainders are recognised."""
    constant, terms = _remainder(index, number)
    return constant % number == 0 and not terms


Terms = list[tuple[PrimExpr, int]]


def _remainder(index: PrimExpr, number: int) -> tuple[int, Terms]:
    """A constant and scaled terms whose sum is congruent to `index` modulo the number."""
    if isinstance(index, IntImm):
        return index.value, []
    if isinstance(index, Add | Sub):
        sign = 1 if isinstance(index, Add) else -1
        (constant, terms), (other, others) = _remainder(index.a, number), _remainder(index.b, number)
        return constant + sign * other, _sum(terms, others, sign, number)
    if isinstance(index, Mul) and isinstance(index.b, IntImm):
        constant, terms = _remainder(index.a, number // gcd(index.b.value, number))
        return constant * index.b.value, _sum([], terms, index.b.value, number)
    if isinstance(index, FloorMod) and isinstance(index.b, IntImm) and index.b.value % number == 0:
        return _remainder(index.a, number)
    return 0, [(index, 1)]


def _sum(terms: Terms, others: Terms, scale: int, number: int) -> Terms:
    total = list(terms)
    for term, factor in others:
        place = next((i for i, (known, _) in enumerate(total) if structural_equal(known, term)), len(total))
        known = total[place][1] if place < len(total) else 0
        total[place : place + 1] = [(term, (known + scale * factor) % number)]
    return [(term, factor) for term, factor in total if factor]
