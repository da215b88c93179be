"""Linear algebra on small matrices."""

from __future__ import annotations

from collections.abc import Sequence

import te
from te import Tensor
from te.tir import Buffer, PrimExpr, Stmt, ir_builder
from te.tir.ir_builder import BufferView, IRBuilder
from topi.loops import loop_nest
from topi.utils import accumulator_type

__all__ = ["det"]


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
                _bring_up_pivot(ib, a, n, k, product)
                product[0] = product[0] * a[k, k]
                _eliminate(ib, a, n, k)
            out[at] = te.cast(x.dtype, product[0])
        return ib.get()

    result = te.extern(batch, [x], fill, name="det", dtype=x.dtype, tag="default")
    return result if x.ndim > 2 else te.compute((), lambda: result(0), name="det_scalar")


def _bring_up_pivot(ib: IRBuilder, a: BufferView, n: PrimExpr | int, k: PrimExpr, product: BufferView) -> None:
    """Swap row k with the row below it whose element in column k is largest; each swap turns the sign."""
    pivot = ib.allocate("int32", 1, "pivot")
    pivot[0] = k
    with ib.for_range(k + 1, n, "i") as i, ib.if_scope(te.abs(a[i, k]) > te.abs(a[pivot[0], k])):
        pivot[0] = i
    with ib.if_scope(pivot[0] != k):
        product[0] = -product[0]
        with ib.for_range(k, n, "j") as j:
            upper = ib.let("upper", a[k, j])
            a[k, j] = a[pivot[0], j]
            a[pivot[0], j] = upper


def _eliminate(ib: IRBuilder, a: BufferView, n: PrimExpr | int, k: PrimExpr) -> None:
    """Zeros below the pivot; nothing to do below a pivot of 0, where the column is zero."""
    with ib.for_range(k + 1, n, "i") as i, ib.if_scope(a[k, k] != te.const(0, a.buffer.dtype)):
        factor = ib.let("factor", a[i, k] / a[k, k])
        with ib.for_range(k + 1, n, "j") as j:
            a[i, j] = a[i, j] - factor * a[k, j]
