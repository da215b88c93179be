"""Linear algebra on small matrices."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, PrimExpr, Stmt, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.loops import loop_nest
from relayc.topi.utils import accumulator_type

__all__ = ["det", "inverse"]


def det(x: Tensor) -> Tensor:
    """Determinants (batch...) of matrices x (batch..., n, n): Gaussian elimination with partial pivoting."""
    n, wide = x.shape[-1], accumulator_type(x.dtype)
    batch = x.shape[:-2] if x.ndim > 2 else (1,)

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with loop_nest(ib, batch, "b", independent=True) as at:
            lead = at if x.ndim > 2 else ()
            a = ib.allocate(wide, (n, n), "a", scope="global")
            with loop_nest(ib, (n, n)) as (i, j):
                a[i, j] = te.cast(wide, source[(*lead, i, j)])
            product = ib.allocate(wide, 1, "product")
            product[0] = te.const(1, wide)
            with ib.for_range(0, n, "k") as k:
                with _pivot_below(ib, a, n, k) as pivot:
                    product[0] = -product[0]
                    _swap_rows(ib, a, k, pivot, k, n)
                product[0] = product[0] * a[k, k]
                _eliminate(ib, a, n, k)
            out[at] = te.cast(x.dtype, product[0])
        return ib.get()

    result = te.extern(batch, [x], fill, name="det", dtype=x.dtype, tag="default")
    return result if x.ndim > 2 else te.compute((), lambda: result(0), name="det_scalar")


@contextmanager
def _pivot_below(ib: IRBuilder, a: BufferView, n: PrimExpr | int, k: PrimExpr) -> Generator[PrimExpr]:
    """A block that runs if a row below row k has the largest element in column k. Gives that row."""
    pivot = ib.allocate("int32", 1, "pivot")
    pivot[0] = k
    with ib.for_range(k + 1, n, "i") as i, ib.if_scope(te.abs(a[i, k]) > te.abs(a[pivot[0], k])):
        pivot[0] = i
    with ib.if_scope(pivot[0] != k):
        yield pivot[0]


def _swap_rows(
    ib: IRBuilder, a: BufferView, one: PrimExpr, other: PrimExpr, begin: PrimExpr | int, end: PrimExpr | int
) -> None:
    with ib.for_range(begin, end, "j") as j:
        upper = ib.let("upper", a[one, j])
        a[one, j] = a[other, j]
        a[other, j] = upper


def _eliminate(ib: IRBuilder, a: BufferView, n: PrimExpr | int, k: PrimExpr) -> None:
    """Eliminate the column below the pivot; a pivot of 0 means that the column is zero already."""
    with ib.for_range(k + 1, n, "i") as i, ib.if_scope(a[k, k] != te.const(0, a.buffer.dtype)):
        factor = ib.let("factor", a[i, k] / a[k, k])
        with ib.for_range(k + 1, n, "j") as j:
            a[i, j] = a[i, j] - factor * a[k, j]


def inverse(x: Tensor) -> Tensor:
    """Inverses (batch..., n, n) of matrices x (batch..., n, n): Gauss-Jordan elimination with partial pivoting.

    The inverse of a singular matrix holds infinities or NaN.
    """
    n, wide = x.shape[-1], accumulator_type(x.dtype)
    batch = x.shape[:-2]

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with loop_nest(ib, batch if batch else (1,), "b", independent=True) as at:
            lead = at if batch else ()
            a = ib.allocate(wide, (n, 2 * n), "a", scope="global")  # the matrix, augmented by the identity
            with loop_nest(ib, (n, n)) as (i, j):
                a[i, j] = te.cast(wide, source[(*lead, i, j)])
                a[i, n + j] = te.select(i == j, te.const(1, wide), te.const(0, wide))
            with ib.for_range(0, n, "k") as k:
                with _pivot_below(ib, a, n, k) as pivot:
                    _swap_rows(ib, a, k, pivot, 0, 2 * n)
                scale = ib.let("scale", a[k, k])
                with ib.for_range(0, 2 * n, "j") as j:
                    a[k, j] = a[k, j] / scale
                with ib.for_range(0, n, "i") as i, ib.if_scope(i != k):
                    factor = ib.let("factor", a[i, k])
                    with ib.for_range(0, 2 * n, "j") as j:
                        a[i, j] = a[i, j] - factor * a[k, j]
            with loop_nest(ib, (n, n)) as (i, j):
                out[(*lead, i, j)] = te.cast(x.dtype, a[i, n + j])
        return ib.get()

    return te.extern(x.shape, [x], fill, name="inverse", dtype=x.dtype, tag="default")
