"""Matrix products. Sums of narrow floats are kept in float32."""

from __future__ import annotations

from typing import Any

import te
from te import Tensor
from te.tir import Dim, PrimExpr
from topi.broadcast import broadcast_shape
from topi.tag import BROADCAST, ELEMWISE
from topi.utils import accumulator_type, broadcast_index

__all__ = ["batch_matmul", "bias_add", "dense", "dense_packed"]


def _rounded(total: Tensor, dtype: str) -> Tensor:
    if total.dtype == dtype:
        return total
    return te.compute(total.shape, lambda *i: te.cast(dtype, total(*i)), name=f"{total.op.name}_rounded", tag=ELEMWISE)


def dense(data: Tensor, weight: Tensor, out_dtype: str | None = None) -> Tensor:
    """data (..., K) times weight (N, K) transposed: (..., N)."""
    units, depth = weight.shape
    out_dtype = out_dtype or data.dtype
    wide = accumulator_type(out_dtype)
    k = te.reduce_axis((0, depth), name="k")

    def body(*i: Any) -> PrimExpr:
        return te.sum(te.cast(wide, data(*i[:-1], k)) * te.cast(wide, weight(i[-1], k)), axis=k)

    return _rounded(te.compute((*data.shape[:-1], units), body, name="dense", tag="dense"), out_dtype)


def dense_packed(data: Tensor, weight: Tensor, units: int, out_dtype: str | None = None) -> Tensor:
    """data (..., K) times weights packed (ceil(N / NR), K, NR): (..., N) with N = `units`."""
    _, depth, nr = weight.shape
    out_dtype = out_dtype or data.dtype
    wide = accumulator_type(out_dtype)
    k = te.reduce_axis((0, depth), name="k")

    def body(*i: Any) -> PrimExpr:
        n = i[-1]
        return te.sum(te.cast(wide, data(*i[:-1], k)) * te.cast(wide, weight(n // nr, k, n % nr)), axis=k)

    total = te.compute((*data.shape[:-1], units), body, name="dense", tag="dense_packed", attrs={"block": nr})
    return _rounded(total, out_dtype)


def batch_matmul(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False, out_dtype: str | None = None
) -> Tensor:
    """Products of the matrices in the last two dimensions, (..., M, K) by (..., K, N); leading ones broadcast.

    `transpose_a` says that `a` is (..., K, M), `transpose_b` that `b` is (..., N, K).
    """
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    rows: Dim = a.shape[-1] if transpose_a else a.shape[-2]
    depth: Dim = a.shape[-2] if transpose_a else a.shape[-1]
    columns: Dim = b.shape[-2] if transpose_b else b.shape[-1]
    out_dtype = out_dtype or a.dtype
    wide = accumulator_type(out_dtype)
    k = te.reduce_axis((0, depth), name="k")

    def body(*i: Any) -> PrimExpr:
        *at, m, n = i
        x = a(*broadcast_index(at, a.shape[:-2]), *((k, m) if transpose_a else (m, k)))
        y = b(*broadcast_index(at, b.shape[:-2]), *((n, k) if transpose_b else (k, n)))
        return te.sum(te.cast(wide, x) * te.cast(wide, y), axis=k)

    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    total = te.compute((*batch, rows, columns), body, name="batch_matmul", tag="batch_matmul", attrs=attrs)
    return _rounded(total, out_dtype)


def bias_add(x: Tensor, bias: Tensor, axis: int) -> Tensor:
    """x + bias, one number for each position along `axis`."""
    return te.compute(x.shape, lambda *i: x(*i) + bias(i[axis]), name="bias_add", tag=BROADCAST)
