"""Sorting and running sums (TVM: `topi.sort`, `topi.scan`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import FLOAT32
from relayc.te.tir import Buffer, Dim, PrimExpr, Shuffle, Stmt, call_intrin, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.te.tir.ops import broadcast, ramp
from relayc.topi.counting import MOST_COUNTED, Row, first_of_row
from relayc.topi.groups import constant_size
from relayc.topi.heap import Heap
from relayc.topi.loops import loop_nest
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import num_elements, same_dim, unravel_index

__all__ = ["argsort", "comes_before", "cumprod", "cumsum", "searchsorted", "sort", "topk"]

Compare = Combine = Callable[[PrimExpr, PrimExpr], PrimExpr]


def comes_before(a: PrimExpr, b: PrimExpr, ascending: bool) -> PrimExpr:
    """Must a stand before b? NaN counts as the greatest value."""
    low, high = (a, b) if ascending else (b, a)
    return te.any(low < high, te.all(te.isnan(high), low == low)) if low.dtype.is_float else low < high


def argsort(x: Tensor, axis: int, ascending: bool = True, dtype: str = "int32") -> Tensor:
    """The positions along `axis` in sorted order; equal values keep their order, NaN is the greatest value.

    A bottom-up merge sort of each row: O(n log n), scratch of two rows of positions.
    """
    return _first_positions(x, x.shape[axis], axis, ascending, dtype)


def _first_positions(x: Tensor, count: Dim, axis: int, ascending: bool, dtype: str) -> Tensor:
    """The first `count` positions of `argsort`: few by counting ranks, more out of many with a heap."""
    n, others = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])
    most = _as_part(count, n)

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        keys, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        kind = "parallel" if constant_size(x.shape) >= _WORTH_SHARING else "serial"
        with ib.for_range(0, num_elements(others), "row", kind, independent=True) as row:
            at = unravel_index(row, others)
            before, after = at[:axis], at[axis:]
            if isinstance(count, int) and 1 <= count <= MOST_COUNTED:
                order = first_of_row(ib, Row(ib, keys, before, after, n, ascending), count)
            else:
                find = _select if most else _sort
                order = find(ib, n, count, _Keys(keys, before, after, ascending))
            with ib.for_range(0, count, "k") as k:
                out[(*before, k, *after)] = order[k]
        return ib.get()

    attrs = {"axis": axis, "comes_before": lambda a, b: comes_before(a, b, ascending)}
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return te.extern(shape, [x], fill, name="argsort", dtype=dtype, tag="sort", attrs=attrs)


def _as_part(count: Dim, n: Dim) -> bool:
    """Is `count` known to be a small part of `n`?"""
    if isinstance(count, int) and isinstance(n, int):
        return count * _MANY <= n
    return not same_dim(count, n)


_MANY = 4
"""The least ratio of a row's length to the selected positions for which selection is cheaper than sorting."""
_TOGETHER = 16
"""Elements per vector that are compared with the last of the selected ones."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """A row of sort keys, and its order."""

    buffer: BufferView
    before: Sequence[Any]
    after: Sequence[Any]
    ascending: bool

    def __getitem__(self, position: Any) -> PrimExpr:
        return self.buffer[(*self.before, position, *self.after)]

    def comes_before(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Must value a stand before b?"""
        return comes_before(a, b, self.ascending)

    def comes_after(self, a: PrimExpr, place: Any, b: PrimExpr, other: Any) -> PrimExpr:
        """Must value a at position `place` stand after b at position `other`? Equal values keep their order."""
        return te.any(self.comes_before(b, a), te.all(~self.comes_before(a, b), other < place))


def _sort(ib: IRBuilder, n: Dim, count: Dim, keys: _Keys) -> BufferView:
    """All positions of a row in order."""
    order = ib.allocate("int32", n, "order", scope="global")
    merged = ib.allocate("int32", n, "merged", scope="global")
    with ib.for_range(0, n, "k") as k:
        order[k] = k
    _merge_passes(ib, n, order, merged, lambda a, b: keys.comes_before(keys[a], keys[b]))
    return order


def _select(ib: IRBuilder, n: Dim, count: Dim, keys: _Keys) -> BufferView:
    """The first `count` positions of a row, in order.

    A heap with the last one on top holds the first `count` elements so far: most elements need a single comparison.
    Then the top moves to the end, `count` times (heapsort).
    """
    room = te.max(count, 1) if not isinstance(count, int) else max(count, 1)
    values = ib.allocate(keys.buffer.buffer.dtype, room, "values", scope="global")
    places = ib.allocate("int32", room, "places", scope="global")
    heap = Heap(ib, values, places, keys.comes_after)
    with ib.for_range(0, count, "k") as k:
        values[k] = keys[k]
        places[k] = k
    heap.build(count)
    _meet_the_rest(ib, n, count, keys, lambda: values[0], lambda value, place: heap.sink(0, value, place, count))
    with ib.for_range(1, count, "k") as k:
        end = ib.let("end", count - k)
        value, place = ib.let("value", values[end]), ib.let("place", places[end])
        values[end] = values[0]
        places[end] = places[0]
        heap.sink(0, value, place, end)
    return places


def _meet_the_rest(
    ib: IRBuilder,
    n: Dim,
    count: Dim,
    keys: _Keys,
    last: Callable[[], PrimExpr],
    put: Callable[[PrimExpr, PrimExpr], None],
) -> None:
    """Insert those of the remaining elements that come before the last of the selected ones."""

    def meet(begin: Any, end: Any) -> None:
        with ib.for_range(begin, end, "k") as k:
            value = ib.let("value", keys[k])
            with ib.if_scope(keys.comes_before(value, last())):
                put(value, k)

    if keys.after:
        meet(count, n)
        return
    blocks = ib.let("blocks", (n - count) // _TOGETHER)
    with ib.for_range(0, blocks, "block") as block:
        begin = ib.let("begin", count + block * _TOGETHER)
        top = broadcast(last(), _TOGETHER)
        chosen = te.cast(f"int32x{_TOGETHER}", keys.comes_before(keys[ramp(begin, 1, _TOGETHER)], top))
        with ib.if_scope(call_intrin("int32", "vector_reduce_max", chosen) > 0):
            meet(begin, begin + _TOGETHER)
    meet(count + blocks * _TOGETHER, n)


def _merge_passes(ib: IRBuilder, n: Dim, order: BufferView, merged: BufferView, comes_before: Compare) -> None:
    """Merge runs of 1, 2, 4, ... of `order` until one is left."""
    next_width = ib.allocate("int32", 1, "next_width")
    next_width[0] = 1
    with ib.while_loop(next_width[0] < n):
        width = ib.let("width", next_width[0])
        with ib.for_range(0, (n + 2 * width - 1) // (2 * width), "run") as run:
            _merge_run(ib, n, run, width, order, merged, comes_before)
        with ib.for_range(0, n, "k") as k:
            order[k] = merged[k]
        next_width[0] = 2 * width


def _merge_run(
    ib: IRBuilder, n: Dim, run: PrimExpr, width: PrimExpr, order: BufferView, merged: BufferView, comes_before: Compare
) -> None:
    """Merge the two sorted runs of `width` positions at ``run * 2 * width`` into `merged`."""
    start = ib.let("start", run * 2 * width)
    middle = ib.let("middle", te.minimum(start + width, n))
    end = ib.let("end", te.minimum(start + 2 * width, n))
    next_left, next_right = ib.allocate("int32", 1, "next_left"), ib.allocate("int32", 1, "next_right")
    next_left[0] = start
    next_right[0] = middle
    with ib.for_range(start, end, "k") as k:
        left, right = ib.let("left", next_left[0]), ib.let("right", next_right[0])
        right_first = te.any(left >= middle, comes_before(order[right], order[left]))
        with ib.if_scope(te.all(right < end, right_first)):
            merged[k] = order[right]
            next_right[0] = right + 1
        with ib.else_scope():
            merged[k] = order[left]
            next_left[0] = left + 1


def _take_sorted(x: Tensor, order: Tensor, axis: int, count: Dim) -> Tensor:
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return te.compute(
        shape, lambda *i: x(*i[:axis], te.cast("int32", order(*i)), *i[axis + 1 :]), name="sorted", tag=INJECTIVE
    )


def sort(x: Tensor, axis: int, ascending: bool = True) -> Tensor:
    """x sorted along `axis`; NaN is the greatest value."""
    return _take_sorted(x, argsort(x, axis, ascending), axis, x.shape[axis])


def topk(x: Tensor, k: Dim, axis: int, largest: bool = True, dtype: str = "int64") -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) values along `axis`, in order, and their positions; ties go to the first position."""
    order = _first_positions(x, k, axis, not largest, "int32")
    values = _take_sorted(x, order, axis, k)
    positions = te.compute(values.shape, lambda *i: te.cast(dtype, order(*i)), name="positions", tag=INJECTIVE)
    return values, positions


def searchsorted(sequence: Tensor, values: Tensor, right: bool = False, dtype: str = "int32") -> Tensor:
    """The positions to insert `values` into the ascending vector `sequence`, before or `right` of equals.

    A binary search for each value (TVM: `topi.searchsorted`).
    """
    count = sequence.shape[0]

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        keys, wanted, out = ib.buffer(ins[0]), ib.buffer(ins[1]), ib.buffer(outs[0])
        with loop_nest(ib, values.shape) as at:
            value = ib.let("value", wanted[at])
            bounds = ib.allocate("int32", 2, "bounds")
            bounds[0], bounds[1] = 0, count
            with ib.while_loop(bounds[0] < bounds[1]):
                middle = ib.let("middle", (bounds[0] + bounds[1]) // 2)
                is_before = keys[middle] <= value if right else keys[middle] < value
                low, high = ib.let("low", bounds[0]), ib.let("high", bounds[1])
                bounds[0] = te.if_then_else(is_before, middle + 1, low)
                bounds[1] = te.if_then_else(is_before, high, middle)
            out[at] = bounds[0]
        return ib.get()

    return te.extern(values.shape, [sequence, values], fill, name="searchsorted", dtype=dtype, tag="default")


_LINES = 4
"""Short rows whose running results are computed interleaved: as many as hide the latency of an addition."""
_VECTOR_BYTES = 64
"""Bytes of a vector of running results, for longer rows."""
_WORTH_SHARING = 1 << 16
"""The least elements of running results for which rows run in parallel."""


class _Lines:
    """Running results along the last axis: of long rows by vectors, of several short ones interleaved.

    Results of low-precision floats are rounded only when they are stored.
    """

    def __init__(
        self, ib: IRBuilder, source: BufferView, out: BufferView, combine: Combine, start: int, length: Dim,
        exclusive: bool, reverse: bool,
    ) -> None:  # fmt: skip
        self.ib, self.source, self.out, self.length = ib, source, out, length
        self.kind = out.buffer.dtype
        self.wide = FLOAT32 if self.kind.is_float and self.kind.bits < 32 else self.kind
        self.combine, self.start = combine, te.const(start, self.wide)
        self.exclusive, self.reverse = exclusive, reverse

    def run(self, outer: Sequence[Dim]) -> None:
        """All rows of a tensor whose leading dimensions are `outer`."""
        count: Any = num_elements(outer)
        kind = "parallel" if constant_size([*outer, self.length]) >= _WORTH_SHARING else "serial"
        lanes = _VECTOR_BYTES * 8 // self.wide.bits if self.wide.bits in (32, 64) else 0
        if lanes and (not isinstance(self.length, int) or self.length >= 2 * lanes):
            with self.ib.for_range(0, count, "line", kind) as number:
                line = _along(number, count, self.reverse)  # all memory in one order, for the hardware prefetcher
                self._by_vectors(tuple(unravel_index(line, outer)), lanes)
            return
        with self.ib.for_range(0, count // _LINES, "block", kind) as block:
            self._together([tuple(unravel_index(block * _LINES + n, outer)) for n in range(_LINES)])
        with self.ib.for_range(count // _LINES * _LINES, count, "line") as line:
            self._together([tuple(unravel_index(line, outer))])

    def _together(self, lines: Sequence[tuple[Any, ...]]) -> None:
        total = self.ib.allocate(self.wide, len(lines), "total")
        for n in range(len(lines)):
            total[n] = self.start
        with self.ib.for_range(0, self.length, "k") as k:
            self._step(lines, total, k)

    def _step(self, lines: Sequence[tuple[Any, ...]], total: BufferView, k: PrimExpr) -> None:
        """One element of each row. Loads precede stores: addresses equal modulo the page size alias (4K aliasing)."""
        place = _along(k, self.length, self.reverse)
        for n, line in enumerate(lines if self.exclusive else ()):
            self.out[(*line, place)] = total[n]
        for n, line in enumerate(lines):
            total[n] = self.combine(total[n], te.cast(self.wide, te.cast(self.kind, self.source[(*line, place)])))
        for n, line in enumerate(() if self.exclusive else lines):
            self.out[(*line, place)] = total[n]

    def _by_vectors(self, line: tuple[Any, ...], lanes: int) -> None:
        """One row, by vectors. In each, ends of first halves are combined with second halves of growing size.

        The dependency chain from vector to vector is one combination with the running total. (Sklansky, 1960. Combining
        with a shifted vector, as Hillis and Steele do, compiles to `vexpandps`: three times as slow as memory.)
        """
        ib, every, length = self.ib, ramp(0, 1, lanes), self.length
        total = ib.allocate(self.wide, lanes, "total")
        neutral = broadcast(self.start, lanes)
        total[every] = neutral

        def in_order(vector: PrimExpr) -> PrimExpr:
            return Shuffle((vector,), tuple(reversed(range(lanes)))) if self.reverse else vector

        def first_halves(vector: PrimExpr, half: int) -> PrimExpr:
            last = [i // half * half - 1 for i in range(lanes)]
            return Shuffle((neutral, vector), tuple([lanes + last[i] if i & half else i for i in range(lanes)]))

        with ib.for_range(0, length // lanes, "vector") as number:
            begin = length - (number + 1) * lanes if self.reverse else number * lanes
            here = (*line, ramp(begin, 1, lanes))
            values = te.cast(self.kind.with_lanes(lanes), self.source[here])
            run: PrimExpr = ib.let("run", in_order(te.cast(self.wide.with_lanes(lanes), values)))
            for bit in range(lanes.bit_length() - 1):
                run = ib.let("run", self.combine(first_halves(run, 1 << bit), run))
            before = ib.let("before", total[every])
            result = self.combine(before, run)
            one_later = tuple(range(lanes - 1, 2 * lanes - 1))
            self.out[here] = in_order(Shuffle((before, result), one_later) if self.exclusive else result)
            total[every] = self.combine(before, Shuffle((run,), (lanes - 1,) * lanes))
        with ib.for_range(length // lanes * lanes, length, "k") as k:
            self._step([line], total, k)


def _along(k: PrimExpr, length: Dim, reverse: bool) -> PrimExpr:
    """The index of element `k` in scan order."""
    return length - 1 - k if reverse else k


def _running(combine: Combine, start: int, name: str) -> Callable[..., Tensor]:
    def running(
        x: Tensor, axis: int, dtype: str | None = None, exclusive: bool = False, reverse: bool = False
    ) -> Tensor:
        kind, length = dtype or x.dtype, x.shape[axis]

        def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            ib = ir_builder.create()
            source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
            if axis == x.ndim - 1:
                _Lines(ib, source, out, combine, start, length, exclusive, reverse).run(x.shape[:-1])
                return ib.get()
            with loop_nest(ib, x.shape) as i:
                here, previous = (
                    (*i[:axis], _along(k, length, reverse), *i[axis + 1 :]) for k in (i[axis], i[axis] - 1)
                )
                value = te.cast(kind, source[previous if exclusive else here])
                with ib.if_scope(i[axis] == 0):
                    out[here] = te.const(start, kind) if exclusive else value
                with ib.else_scope():
                    out[here] = combine(out[previous], value)
            return ib.get()

        attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "combine": combine, "start": start}
        return te.extern(x.shape, [x], fill, name=name, dtype=kind, tag="scan", attrs=attrs)

    running.__name__ = running.__qualname__ = name
    running.__doc__ = f"The {name} along `axis`, in type `dtype`; `exclusive` of itself, from the end by `reverse`."
    return running


cumsum = _running(lambda a, b: a + b, 0, "cumsum")
cumprod = _running(lambda a, b: a * b, 1, "cumprod")
