"""Matrix products. Sums of low-precision floats are kept in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import INT32
from relayc.te.tir import Dim, Let, PrimExpr, Var, as_dim
from relayc.te.tir.ops import bitwise_and, bitwise_or, left_shift
from relayc.topi.broadcast import broadcast_shape
from relayc.topi.indexing import inside
from relayc.topi.tag import BROADCAST, ELEMWISE, INJECTIVE, PACK
from relayc.topi.utils import (
    accumulator_type,
    broadcast_index,
    ceil_div,
    num_elements,
    ravel_index,
    same_dim,
    unravel_index,
)

__all__ = [
    "Pairs", "as_rows", "batch_matmul", "batch_matmul_packed", "bias_add", "dense", "dense_packed", "first_columns",
    "int16_pairs", "pack_panels", "rounded", "routed_dense", "take_from_panels", "widened", "with_rows",
]  # fmt: skip


def rounded(total: Tensor, dtype: str) -> Tensor:
    """`total` as `dtype`."""
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

    return rounded(te.compute((*data.shape[:-1], units), body, name="dense", tag="dense"), out_dtype)


def widened(weight: Tensor, wide: str) -> Tensor:
    """Weights converted to the accumulator type: a separate stage, which a schedule computes panel by panel."""
    if weight.dtype == wide:
        return weight
    return te.compute(weight.shape, lambda *i: te.cast(wide, weight(*i)), name="widened", tag="widened_weights")


def int16_pairs(x: Tensor, axis: int, tag: str = "int16_pairs", zero_point: int = 0) -> Tensor:
    """Pairs of 16-bit integers packed in int32, operands of `te.dot2`, which multiplies two steps of a reduction.

    Element i of `axis` is the lower half, element i + size / 2 the upper one. `zero_point` is subtracted first; where
    the axis is odd, the last upper half is 0.
    """
    shape = list(x.shape)
    size = shape[axis]
    half = shape[axis] = ceil_div(size, 2)
    even = isinstance(size, int) and size % 2 == 0

    def element(at: list[Any]) -> PrimExpr:
        value = te.cast("int32", x(*at))
        return value - zero_point if zero_point else value

    def body(*i: Any) -> PrimExpr:
        along = axis % len(i)
        high = element([v + half if a == along else v for a, v in enumerate(i)])
        if not even:
            high = te.if_then_else(i[along] + half < size, high, te.const(0, "int32"))
        return bitwise_or(bitwise_and(element(list(i)), 0xFFFF), left_shift(high, 16))

    return te.compute(tuple(shape), body, name="pairs", tag=tag, attrs={"pairs": True})


@dataclass(frozen=True, slots=True)
class Pairs:
    """A product by 2-way dot products of 16-bit integers; `zero_point` is subtracted from the data first."""

    zero_point: int = 0


def product_of_rows(rows: Tensor, weight: Tensor, units: Dim, wide: str, pairs: Pairs | None = None) -> Tensor:
    """rows (M, K) times panels (ceil(N / NR), K, NR), summed as `wide`: (M, `units`).

    The padding columns of the last panel are computed, too, as whole vectors, and not copied to the result.
    """
    panels, _, nr = weight.shape
    if pairs:
        rows = int16_pairs(rows, 1, zero_point=pairs.zero_point)
        factors = int16_pairs(weight, 1, "widened_weights")
    else:
        factors = widened(weight, wide)
    k = te.reduce_axis((0, rows.shape[1]), name="k")

    def body(m: Any, n: Any) -> PrimExpr:
        x, y = te.cast(wide, rows(m, k)), te.cast(wide, factors(n // nr, k, n % nr))
        return te.sum(te.dot2(x, y) if pairs else x * y, axis=k)

    attrs = {"block": nr, "groups": 1}
    shape = (rows.shape[0], as_dim(panels * nr))
    return first_columns(te.compute(shape, body, name="dense", tag="dense_packed", attrs=attrs), units)


def first_columns(product: Tensor, columns: Dim) -> Tensor:
    """`product` without the padding columns of its last panel."""
    if same_dim(product.shape[-1], columns):
        return product

    def body(*i: Any) -> PrimExpr:
        return product(*i)

    return te.compute((*product.shape[:-1], columns), body, name=f"{product.op.name}_columns", tag=INJECTIVE)


def as_rows(x: Tensor) -> Tensor:
    """x (..., K) with the leading dimensions as rows."""
    if x.ndim == 2:
        return x
    lead = x.shape[:-1]
    shape = (num_elements(lead), x.shape[-1])
    return te.compute(shape, lambda m, k: x(*unravel_index(m, lead), k), name="rows", tag=INJECTIVE)


def with_rows(product: Tensor, lead: Sequence[Dim]) -> Tensor:
    """A product (M, N), its rows under the leading dimensions `lead`."""
    if len(lead) == 1:
        return product

    def body(*i: Any) -> PrimExpr:
        return product(ravel_index(i[:-1], lead), i[-1])

    return te.compute((*lead, product.shape[-1]), body, name="dense_of_rows", tag=INJECTIVE)


def dense_packed(
    data: Tensor, weight: Tensor, units: Dim, out_dtype: str | None = None, pairs: Pairs | None = None
) -> Tensor:
    """data (..., K) times weights packed (ceil(N / NR), K, NR): (..., N) with N = `units`; see `product_of_rows`."""
    out_dtype = out_dtype or data.dtype
    product = product_of_rows(as_rows(data), weight, units, accumulator_type(out_dtype), pairs)
    return rounded(with_rows(product, data.shape[:-1]), out_dtype)


def pack_panels(x: Tensor, width: int, transposed: bool = False) -> Tensor:
    """Matrices (..., N, K), or (..., K, N) if `transposed`, in panels (..., ceil(N / width), K, width).

    The last panel is padded with zeros.
    """
    *batch, columns, depth = (*x.shape[:-2], x.shape[-1], x.shape[-2]) if transposed else x.shape
    whole, count = isinstance(columns, int) and columns % width == 0, ceil_div(columns, width)

    def element(*i: Any) -> PrimExpr:
        *at, panel, lane, k = i
        n = panel * width + lane
        value = x(*at, k, n) if transposed else x(*at, n, k)
        return value if whole else te.if_then_else(n < columns, value, te.const(0, x.dtype))

    rows = None if transposed else te.compute((*batch, count, width, depth), element, name="panel_rows", tag=INJECTIVE)

    def body(*i: Any) -> PrimExpr:
        *at, panel, k, lane = i
        return (element if rows is None else rows)(*at, panel, lane, k)

    tag = INJECTIVE if transposed else PACK
    return te.compute((*batch, count, depth, width), body, name="pack_panels", tag=tag)


def take_from_panels(panels: Tensor, indices: Tensor, rows: int, mode: str = "clip") -> Tensor:
    """`topi.take` of rows of a matrix (N, K) packed as (ceil(N / NR), K, NR), N = `rows`: indices.shape + (K,)."""
    width = panels.shape[-1]

    def body(*i: Any) -> PrimExpr:
        named = Var("row", INT32)
        at = inside(indices(*i[:-1]), rows, mode)
        return Let(named, at, panels(named // width, i[-1], named % width))

    return te.compute((*indices.shape, panels.shape[1]), body, name="take", tag=INJECTIVE)


def batch_matmul_packed(
    a: Tensor, panels: Tensor, columns: Dim, out_dtype: str | None = None, transpose_a: bool = False
) -> Tensor:
    """Matrices (..., M, K) times panels (..., ceil(N / NR), K, NR): (..., M, N) with N = `columns`.

    Leading dimensions broadcast; `transpose_a` says that `a` is (..., K, M). The last panel is computed including its
    padding.
    """
    count, depth, nr = panels.shape[-3:]
    batch = broadcast_shape(a.shape[:-2], panels.shape[:-3])
    out_dtype = out_dtype or a.dtype
    wide = accumulator_type(out_dtype)
    k = te.reduce_axis((0, depth), name="k")

    def body(*i: Any) -> PrimExpr:
        *at, m, n = i
        x = a(*broadcast_index(at, a.shape[:-2]), *((k, m) if transpose_a else (m, k)))
        y = panels(*broadcast_index(at, panels.shape[:-3]), n // nr, k, n % nr)
        return te.sum(te.cast(wide, x) * te.cast(wide, y), axis=k)

    rows: Dim = a.shape[-1] if transpose_a else a.shape[-2]
    shape = (*batch, rows, as_dim(count * nr))
    attrs = {"block": nr, "transpose_a": transpose_a}
    product = te.compute(shape, body, name="batch_matmul", tag="batch_matmul_packed", attrs=attrs)
    return rounded(first_columns(product, columns), out_dtype)


def routed_dense(data: Tensor, panels: Tensor, chosen: Tensor, units: Dim) -> Tensor:
    """Groups of rows (T, rows, K) times the matrix `chosen` (T,) for each, of panels (experts, ceil(N / NR), K, NR).

    Returns (T, rows, N) with N = `units`. The last panel is computed including its padding.
    """
    _, count, depth, nr = panels.shape
    wide = accumulator_type(data.dtype)
    k = te.reduce_axis((0, depth), name="k")

    def body(t: Any, m: Any, n: Any) -> PrimExpr:
        y = panels(te.cast("int32", chosen(t)), n // nr, k, n % nr)
        return te.sum(te.cast(wide, data(t, m, k)) * te.cast(wide, y), axis=k)

    shape = (*data.shape[:2], as_dim(count * nr))
    total = te.compute(shape, body, name="routed_dense", tag="routed_dense", attrs={"block": nr})
    return rounded(first_columns(total, units), data.dtype)


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
    return rounded(total, out_dtype)


def bias_add(x: Tensor, bias: Tensor, axis: int) -> Tensor:
    """x + bias, which has one value for each position along `axis`."""
    return te.compute(x.shape, lambda *i: x(*i) + bias(i[axis]), name="bias_add", tag=BROADCAST)
