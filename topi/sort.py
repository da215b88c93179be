"""Sorting and running sums (TVM: `topi.sort`, `topi.scan`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import te
from te import Tensor
from te.errors import CompileError
from te.tir import Allocate, Buffer, BufferLoad, BufferStore, Dim, PrimExpr, Stmt, as_int, decl_buffer, seq
from topi.loops import Cell, loop, loop_nest
from topi.tag import INJECTIVE

__all__ = ["argsort", "cumprod", "cumsum", "sort", "topk"]


def _comes_before(a: PrimExpr, b: PrimExpr, ascending: bool) -> PrimExpr:
    """Must a stand before b? NaN counts as the greatest value."""
    low, high = (a, b) if ascending else (b, a)
    return te.any(low < high, te.all(te.isnan(high), low == low)) if low.dtype.is_float else low < high


def argsort(x: Tensor, axis: int, ascending: bool = True, dtype: str = "int32") -> Tensor:
    """The positions along `axis` in sorted order; equal values keep their order, NaN is the greatest value.

    A bottom-up merge sort of each row: O(n log n), scratch of two rows of positions.
    """
    n = x.shape[axis]
    outer, inner = x.shape[:axis], x.shape[axis + 1 :]

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        def row(*at: PrimExpr) -> Stmt:
            before, after = at[: len(outer)], at[len(outer) :]
            order, merged = decl_buffer((n,), "int32", "order"), decl_buffer((n,), "int32", "merged")

            def key(position: PrimExpr) -> PrimExpr:
                return BufferLoad(ins[0], (*before, position, *after))

            def store(k: PrimExpr) -> Stmt:
                return BufferStore(outs[0], te.cast(dtype, BufferLoad(order, (k,))), (*before, k, *after))

            stmt = seq(
                loop(n, lambda k: BufferStore(order, k, (k,))),
                _merge_passes(n, order, merged, lambda a, b: _comes_before(key(a), key(b), ascending)),
                loop(n, store),
            )
            return Allocate(order, Allocate(merged, stmt))

        return loop_nest((*outer, *inner), row)

    return te.extern(x.shape, [x], body, name="argsort", dtype=dtype, tag="sort")


def _merge_passes(
    n: Dim, order: Buffer, merged: Buffer, comes_before: Callable[[PrimExpr, PrimExpr], PrimExpr]
) -> Stmt:
    """Merge runs of 1, 2, 4, ... of `order` until one is left."""
    length = as_int(n)
    if length is None:
        raise CompileError(f"sort: the size of the sorted axis must be known at compile time, got {n}")
    levels = max(length - 1, 0).bit_length()

    def one_pass(level: PrimExpr) -> Stmt:
        width = te.const(1) << level
        runs = (n + 2 * width - 1) // (2 * width)
        copy_back = loop(n, lambda k: BufferStore(order, BufferLoad(merged, (k,)), (k,)))
        return seq(loop(runs, lambda run: _merge_run(n, run, width, order, merged, comes_before)), copy_back)

    return loop(levels, one_pass)


def _merge_run(
    n: Dim,
    run: PrimExpr,
    width: PrimExpr,
    order: Buffer,
    merged: Buffer,
    comes_before: Callable[[PrimExpr, PrimExpr], PrimExpr],
) -> Stmt:
    start = run * 2 * width
    middle = te.minimum(start + width, n)
    end = te.minimum(start + 2 * width, n)
    left, right = Cell("left"), Cell("right")

    def step(k: PrimExpr) -> Stmt:
        a, b = BufferLoad(order, (left.value,)), BufferLoad(order, (right.value,))
        take_right = te.all(right.value < end, te.any(left.value >= middle, comes_before(b, a)))
        chosen = Cell("chosen", "bool")
        return chosen.around(seq(
            chosen.store(take_right),
            BufferStore(merged, te.if_then_else(chosen.value, b, a), (start + k,)),
            right.store(right.value + te.cast("int32", chosen.value)),
            left.store(left.value + te.cast("int32", ~chosen.value)),
        ))  # fmt: skip

    merge = seq(left.store(start), right.store(middle), loop(end - start, step))
    return left.around(right.around(merge))


def _take_sorted(x: Tensor, order: Tensor, axis: int, count: Dim) -> Tensor:
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return te.compute(
        shape, lambda *i: x(*i[:axis], te.cast("int32", order(*i)), *i[axis + 1 :]), name="sorted", tag=INJECTIVE
    )


def sort(x: Tensor, axis: int, ascending: bool = True) -> Tensor:
    """x sorted along `axis`; NaN is the greatest value."""
    return _take_sorted(x, argsort(x, axis, ascending), axis, x.shape[axis])


def topk(x: Tensor, k: int, axis: int, largest: bool = True, dtype: str = "int64") -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) values along `axis`, in order, and their positions; ties go to the first position."""
    order = argsort(x, axis, ascending=not largest)
    values = _take_sorted(x, order, axis, k)
    positions = te.compute(values.shape, lambda *i: te.cast(dtype, order(*i)), name="positions", tag=INJECTIVE)
    return values, positions


def _running(combine: Callable[[PrimExpr, PrimExpr], PrimExpr], start: int, name: str) -> Callable[..., Tensor]:
    def running(x: Tensor, axis: int, dtype: str | None = None, exclusive: bool = False) -> Tensor:
        kind = dtype or x.dtype

        def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            def step(*i: PrimExpr) -> Stmt:
                before = (*i[:axis], i[axis] - 1, *i[axis + 1 :])
                value = te.cast(kind, BufferLoad(ins[0], before if exclusive else i))
                first = te.const(start, kind) if exclusive else value
                return BufferStore(
                    outs[0], te.if_then_else(i[axis] == 0, first, combine(BufferLoad(outs[0], before), value)), i
                )

            return loop_nest(x.shape, step)

        return te.extern(x.shape, [x], body, name=name, dtype=kind, tag="scan")

    running.__name__ = running.__qualname__ = name
    running.__doc__ = f"The {name} along `axis`, in type `dtype`; `exclusive` leaves the element itself out."
    return running


cumsum = _running(lambda a, b: a + b, 0, "cumsum")
cumprod = _running(lambda a, b: a * b, 1, "cumprod")
