"""Vectorised top-k selection: a threshold, a filter, and ranks by counting.

Elements are compared as integers of the same order. The rank of an element is the number of elements before it, which
vectors count without branches. That takes quadratic time, so in a long row only candidates are ranked: those that pass
a threshold, which comes from the maxima of the lanes of a sample, as these are distinct elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Dim, PrimExpr, call_intrin
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.te.tir.ops import broadcast, make_const, ramp

__all__ = ["MOST_COUNTED", "Row", "first_of_row", "order_key"]

MOST_COUNTED = 512
"""The most elements that are selected by counting: 16 thousand vector comparisons. A heap takes three times as long for
300 of 8400 in random order, and two thirds for 512 in the worst order."""
_LANES = 16
"""Elements per vector comparison."""
_SAMPLE = 4096
"""Elements of the sample that gives the threshold: they stay in the first-level cache until they are filtered."""


def _key_type(of: DType) -> DType:
    return dtype("int64" if of.bits == 64 or (of.is_uint and of.bits == 32) else "int32")


def order_key(x: PrimExpr, ascending: bool) -> PrimExpr:
    """An integer that is greater the earlier x comes. Zeros are equal, and so are all NaNs, the greatest value."""
    of, kind = x.dtype.element, _key_type(x.dtype.element).with_lanes(x.dtype.lanes)
    lowest, highest = (make_const(kind, v) for v in (kind.element.min_value(), kind.element.max_value()))
    if of.is_float:
        wide = x if of.bits >= 32 else te.cast(f"float32x{kind.lanes}" if kind.lanes > 1 else "float32", x)
        bits = call_intrin(kind, "reinterpret", wide)
        key = te.select(bits < make_const(kind, 0), lowest - bits, bits)
        key = te.select(te.isnan(wide), highest, key)
    elif of.is_uint and of.bits == 64:
        key = call_intrin(kind, "reinterpret", x) + lowest
    else:
        key = te.cast(kind, x)
    return make_const(kind, -1) - key if ascending else key


class Row:
    """A row of a tensor as keys; the keys of a strided row are copied to contiguous memory first."""

    def __init__(
        self, ib: IRBuilder, source: BufferView, before: Sequence[Any], after: Sequence[Any], n: Dim, ascending: bool
    ) -> None:
        self.source, self.before, self.n, self.ascending = source, before, n, ascending
        self.key_type = _key_type(source.buffer.dtype)
        self._copy = ib.allocate(self.key_type, n, "row_keys", scope="global") if after else None
        if self._copy is not None:
            with ib.for_range(0, n, "k") as k:
                self._copy[k] = order_key(source[(*before, k, *after)], ascending)

    def __getitem__(self, at: Any) -> PrimExpr:
        """The key of an element, or of several for a vector of indices."""
        return order_key(self.source[(*self.before, at)], self.ascending) if self._copy is None else self._copy[at]


class _Chosen:
    """Keys and indices of candidates for the first `count`; equal ones are ordered by index."""

    def __init__(self, ib: IRBuilder, key_type: DType, count: int, room: int) -> None:
        self.ib, self.key_type, self.count, self.room = ib, key_type, count, room
        size = room + _LANES  # padding to a whole vector may follow
        self.keys, self.places = ib.allocate(key_type, size, "keys"), ib.allocate("int32", size, "places")
        self.ordered = ib.allocate(key_type, size, "ordered_keys")
        self.ordered_places = ib.allocate("int32", size, "ordered_places")
        self.filled, self.least = ib.allocate("int32", 1, "filled"), ib.allocate(key_type, 1, "least")
        self.lowest = make_const(key_type, key_type.min_value())
        self.filled[0], self.least[0] = 0, self.lowest

    def append(self, key: PrimExpr, place: Any) -> None:
        """Store an element at the end, and advance only if it passes the threshold."""
        at = self.ib.let("at", self.filled[0])
        self.keys[at], self.places[at] = key, place
        self.filled[0] = at + te.cast("int32", key >= self.least[0])

    def order(self) -> None:
        """Sort by rank: write each element to the index given by the number of elements before it."""
        ib, lanes = self.ib, ramp(0, 1, _LANES)
        self.keys[ramp(self.filled[0], 1, _LANES)] = broadcast(self.lowest, _LANES)
        end = ib.let("end", (self.filled[0] + _LANES - 1) // _LANES * _LANES)
        counts = ib.allocate("int32", _LANES, "counts")

        def count(comes_before: PrimExpr) -> None:
            counts[lanes] = counts[lanes] + te.cast(f"int32x{_LANES}", comes_before)

        with ib.for_range(0, end // _LANES, "vector") as vector:
            begin = ib.let("begin", vector * _LANES)
            mine = ib.let("mine", self.keys[ramp(begin, 1, _LANES)])
            counts[lanes] = broadcast(0, _LANES)
            with ib.for_range(0, begin, "other") as other:
                count(broadcast(self.keys[other], _LANES) >= mine)
            with ib.for_range(0, _LANES, "other") as other:
                key = ib.let("key", broadcast(self.keys[begin + other], _LANES))
                count(te.any(key > mine, te.all(key >= mine, lanes > broadcast(other, _LANES))))
            with ib.for_range(begin + _LANES, end, "other") as other:
                count(broadcast(self.keys[other], _LANES) > mine)
            with ib.for_range(0, _LANES, "lane") as lane:
                place = ib.let("place", counts[lane])
                self.ordered[place], self.ordered_places[place] = self.keys[begin + lane], self.places[begin + lane]

    def cut(self) -> None:
        """Keep the first `count` only. Later elements of the row have to come before the last of these."""
        self.order()
        with self.ib.for_range(0, -(-self.count // _LANES), "vector") as vector:
            here = ramp(vector * _LANES, 1, _LANES)
            self.keys[here], self.places[here] = self.ordered[here], self.ordered_places[here]
        self.filled[0] = self.count
        highest = make_const(self.key_type, self.key_type.max_value() - 1)
        self.least[0] = te.min(self.ordered[self.count - 1], highest) + make_const(self.key_type, 1)


def first_of_row(ib: IRBuilder, row: Row, count: int) -> BufferView:
    """The indices of the first `count` elements of a row of at least as many, in order; equal ones by index."""
    n = row.n
    if isinstance(n, int) and n <= max(2 * count, 2 * _LANES):
        chosen = _Chosen(ib, row.key_type, count, -(-n // _LANES) * _LANES)
        with ib.for_range(0, n, "k") as k:
            chosen.append(row[k], k)
    else:
        chosen = _Chosen(ib, row.key_type, count, (2 * count + 4 * _LANES) // _LANES * _LANES)
        _find_threshold(ib, row, chosen)
        _filter(ib, row, chosen)
    chosen.order()
    return chosen.ordered_places


def _find_threshold(ib: IRBuilder, row: Row, chosen: _Chosen) -> None:
    """The `count`-th greatest of the lanes' maximum keys: at least `count` elements are not less."""
    lanes, vectors = ramp(0, 1, _LANES), chosen.count // _LANES + 1
    top = ib.allocate(row.key_type, _LANES, "top")
    steps = ib.let("steps", te.min(row.n, max(_SAMPLE, 2 * vectors * _LANES)) // (vectors * _LANES))
    with ib.for_range(0, vectors, "vector") as vector:
        top[lanes] = broadcast(chosen.lowest, _LANES)
        with ib.for_range(0, steps, "step") as step:
            top[lanes] = te.max(top[lanes], row[ramp((vector * steps + step) * _LANES, 1, _LANES)])
        chosen.keys[ramp(vector * _LANES, 1, _LANES)] = top[lanes]
    chosen.filled[0] = vectors * _LANES
    chosen.order()
    chosen.least[0], chosen.filled[0] = chosen.ordered[chosen.count - 1], 0


def _filter(ib: IRBuilder, row: Row, chosen: _Chosen) -> None:
    """Append the elements that pass the threshold; when there is no room for another vector, keep the first `count`."""
    lanes, rest = ramp(0, 1, _LANES), ib.let("rest", row.n % _LANES)
    with ib.for_range(0, rest, "k") as k:
        chosen.append(row[k], k)
    keys = ib.allocate(row.key_type, _LANES, "block_keys")
    with ib.for_range(0, row.n // _LANES, "block") as block:
        begin = ib.let("begin", rest + block * _LANES)
        keys[lanes] = row[ramp(begin, 1, _LANES)]
        passing = te.cast(f"int32x{_LANES}", keys[lanes] >= broadcast(chosen.least[0], _LANES))
        with ib.if_scope(call_intrin("int32", "vector_reduce_max", passing) > 0):
            with ib.if_scope(chosen.filled[0] > chosen.room - _LANES):
                chosen.cut()
            with ib.for_range(0, _LANES, "lane", "unrolled") as lane:
                chosen.append(keys[lane], begin + lane)
