"""Sorting and running sums (TVM: `topi.sort`, `topi.scan`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import te
from te import Tensor
from te.tir import Buffer, Dim, PrimExpr, Stmt, ir_builder
from te.tir.ir_builder import BufferView, IRBuilder
from topi.groups import constant_size
from topi.loops import loop_nest
from topi.tag import INJECTIVE
from topi.utils import num_elements, unravel_index

__all__ = ["argsort", "comes_before", "cumprod", "cumsum", "searchsorted", "sort", "topk"]

Compare = Callable[[PrimExpr, PrimExpr], PrimExpr]


def comes_before(a: PrimExpr, b: PrimExpr, ascending: bool) -> PrimExpr:
    """Must a stand before b? NaN counts as the greatest value."""
    low, high = (a, b) if ascending else (b, a)
    return te.any(low < high, te.all(te.isnan(high), low == low)) if low.dtype.is_float else low < high


def argsort(x: Tensor, axis: int, ascending: bool = True, dtype: str = "int32") -> Tensor:
    """The positions along `axis` in sorted order; equal values keep their order, NaN is the greatest value.

    A bottom-up merge sort of each row: O(n log n), scratch of two rows of positions.
    """
    n = x.shape[axis]

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        keys, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with loop_nest(ib, (*x.shape[:axis], *x.shape[axis + 1 :])) as at:
            before, after = at[:axis], at[axis:]
            order = ib.allocate("int32", n, "order", scope="global")
            merged = ib.allocate("int32", n, "merged", scope="global")

            def first(a: PrimExpr, b: PrimExpr) -> PrimExpr:
                return comes_before(keys[(*before, a, *after)], keys[(*before, b, *after)], ascending)

            with ib.for_range(0, n, "k") as k:
                order[k] = k
            _merge_passes(ib, n, order, merged, first)
            with ib.for_range(0, n, "k") as k:
                out[(*before, k, *after)] = order[k]
        return ib.get()

    attrs = {"axis": axis, "comes_before": lambda a, b: comes_before(a, b, ascending)}
    return te.extern(x.shape, [x], fill, name="argsort", dtype=dtype, tag="sort", attrs=attrs)


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
    order = argsort(x, axis, ascending=not largest)
    values = _take_sorted(x, order, axis, k)
    positions = te.compute(values.shape, lambda *i: te.cast(dtype, order(*i)), name="positions", tag=INJECTIVE)
    return values, positions


def searchsorted(sequence: Tensor, values: Tensor, right: bool = False, dtype: str = "int32") -> Tensor:
    """Where each of `values` would be inserted into the ascending vector `sequence`, before or `right` of equal ones.

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
"""Lines of running results that are computed together, each of which waits for its last addition only: as many as hide
how long that takes."""
_WORTH_SHARING = 1 << 16
"""Elements of running results from which several threads share the lines."""


def _run_along_lines(
    ib: IRBuilder,
    source: BufferView,
    out: BufferView,
    shape: Sequence[Dim],
    combine: Callable[[PrimExpr, PrimExpr], PrimExpr],
    start: PrimExpr,
    exclusive: bool,
) -> None:
    """Running results along the last axis, several lines at once."""
    *outer, length = shape
    count: Any = num_elements(outer)

    def run(first: Any, lines: int) -> None:
        total = ib.allocate(start.dtype, lines, "total")
        at = [tuple(unravel_index(first + n, outer)) for n in range(lines)]
        for n in range(lines):
            total[n] = start
        with ib.for_range(0, length, "k") as k:
            for n in range(lines if exclusive else 0):
                out[(*at[n], k)] = total[n]
            for n in range(lines):  # reads before writes: lines that are pages apart look alike to the processor
                total[n] = combine(total[n], te.cast(start.dtype, source[(*at[n], k)]))
            for n in range(0 if exclusive else lines):
                out[(*at[n], k)] = total[n]

    kind = "parallel" if constant_size(shape) >= _WORTH_SHARING else "serial"
    with ib.for_range(0, count // _LINES, "block", kind) as block:
        run(block * _LINES, _LINES)
    with ib.for_range(count // _LINES * _LINES, count, "line") as line:
        run(line, 1)


def _running(combine: Callable[[PrimExpr, PrimExpr], PrimExpr], start: int, name: str) -> Callable[..., Tensor]:
    def running(x: Tensor, axis: int, dtype: str | None = None, exclusive: bool = False) -> Tensor:
        kind = dtype or x.dtype

        def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            ib = ir_builder.create()
            source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
            if axis == x.ndim - 1:
                _run_along_lines(ib, source, out, x.shape, combine, te.const(start, kind), exclusive)
                return ib.get()
            with loop_nest(ib, x.shape) as i:
                previous = (*i[:axis], i[axis] - 1, *i[axis + 1 :])
                value = te.cast(kind, source[previous if exclusive else i])
                with ib.if_scope(i[axis] == 0):
                    out[i] = te.const(start, kind) if exclusive else value
                with ib.else_scope():
                    out[i] = combine(out[previous], value)
            return ib.get()

        attrs = {"axis": axis, "exclusive": exclusive, "combine": combine, "start": start}
        return te.extern(x.shape, [x], fill, name=name, dtype=kind, tag="scan", attrs=attrs)

    running.__name__ = running.__qualname__ = name
    running.__doc__ = f"The {name} along `axis`, in type `dtype`; `exclusive` leaves the element itself out."
    return running


cumsum = _running(lambda a, b: a + b, 0, "cumsum")
cumprod = _running(lambda a, b: a * b, 1, "cumprod")
