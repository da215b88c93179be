"""Products of few rows (GEMV, skinny GEMM) on CPUs: the right operand is not packed, but streamed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr, Reduce, convert
from relayc.te.tir.substitute import substitute
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.common import local_accumulator, operands, parallel
from relayc.topi.cpu.lane_sums import sum_rows
from relayc.topi.cpu.products.store_order import StoreOrder
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import at_precision_of, reads_in_place, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_batch_matmul", "single_column"]

_VECTORS_OF_FEW_ROWS = 12
"""Vector accumulators of a tile of few rows: wide tiles read long pieces of each row of the right operand."""
_SHARE_OF_SUMS, _COLUMNS = 1 / 2, 4
"""Part of the registers for vector accumulators, and most columns they belong to: rows of the right operand that are
pages apart alias in the cache (1024 x 1025: 16 columns at a time took 169 us, 4 took 60)."""


_LOOKED_UP, _COLUMNS_LOOKED_UP = 32, 8
"""Matrices looked up, often the same one several times in turn, whose products with a row each take some columns at a
time, so that the rows of the matrix that they belong to stay in a cache; and most of these columns. (Products of 300
rows with 8 matrices of 1024 x 512 took 8 ms, with 4 columns 9, with all columns of one row after the other 21.)"""

_SUMMED_BY_LANES = ("float32", "float64")


@register_schedule("batch_matmul", "cpu")
def schedule_batch_matmul(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Products whose right operand is not packed. Few rows stream it once in memory order; others go stage by stage.

    With the right operand transposed, the reduction is contiguous: each result is a sum of vectors. Otherwise a tile
    holds all rows of as many columns as there are registers for.
    """
    target = at_precision_of(target, anchor.output(0).dtype)
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _stagewise(kernel: KernelFacts) -> te.Schedule | Refused:
    rows, columns, steps = [extent_of(axis) for axis in (*kernel.anchor.axis[-2:], *kernel.anchor.reduce_axis)]
    transposed = kernel.anchor.attrs["transpose_a"], kernel.anchor.attrs["transpose_b"]
    if reads_in_place(kernel.target, rows, columns, steps, *transposed):
        return Refused("rows are so few that the right operand is read in place")
    return stage_by_stage(kernel)


def _work(out: te.Tensor, anchor: te.Operation) -> float:
    return 2.0 * constant_size(out.shape) * constant_size([extent_of(axis) for axis in anchor.reduce_axis])


def _along(kernel: KernelFacts) -> te.Schedule:
    """Each result on its own, as a sum of vectors."""
    s, anchor, out, lanes = kernel.create_schedule(), kernel.anchor, kernel.out, vector_lanes(kernel.target)
    inline_injective(s, kernel.outs, keep=[anchor])
    result = local_accumulator(s, anchor, out)
    *batch, row, column = s[out].op.axis
    s[out].reorder(*batch, column, row)
    each = s[out].fuse(*batch, column)
    parallel(s, out, each, _work(out, anchor), lanes)
    s[result].compute_at(s[out], row)
    vectorize_reduction(s, result, lanes, (out, row))
    return s


def _lane_sums(s: te.Schedule, anchor: te.Operation, lanes: int) -> tuple[te.Tensor, te.Tensor]:
    """The results of `anchor` as sums of the lanes of vectors, and these vectors (..., rows, columns, lanes)."""
    assert isinstance(anchor, te.ComputeOp) and isinstance(anchor.body[0], Reduce)
    (k,), (term,) = anchor.reduce_axis, anchor.body[0].source
    shape, steps = [extent_of(axis) for axis in anchor.axis], constant_size([extent_of(k)])
    vector, lane = te.reduce_axis((0, -(-steps // lanes)), name="vector"), te.reduce_axis((0, lanes), name="lane")

    def of_lane(*i: Any) -> PrimExpr:
        step = vector * lanes + i[-1]
        at = [convert(v) for v in (*i[:-1], step)]
        value = substitute(term, {axis.var: v for axis, v in zip((*anchor.axis, k), at, strict=True)})
        if steps % lanes:
            value = te.if_then_else(step < steps, value, te.const(0, value.dtype))
        return te.sum(value, axis=vector)

    vectors = te.compute((*shape, lanes), of_lane, name=f"{anchor.name}.lanes")
    sums = te.compute(shape, lambda *i: te.sum(vectors(*i, lane), axis=lane), name=anchor.name)
    s.recompute(anchor.output(0), sums)
    return sums, vectors


def single_column(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule | Refused:
    """A product with packed panels of which one column is used, from where it was packed, or a copy of it.

    Each result is a sum of vectors.
    """
    out, dtype = outs[0], anchor.output(0).dtype
    if anchor.attrs["transpose_a"] or anchor.attrs.get("form", "fma") != "fma" or str(dtype) not in _SUMMED_BY_LANES:
        return Refused("vectors along the reduction are not contiguous, or no plain products")
    if len(anchor.reduce_axis) != 1 or StoreOrder.of(out).result is not out:
        return Refused("results are stored in another order, or several axes are summed")
    s, lanes = te.create_schedule([out.op for out in outs]), vector_lanes(target)
    inline_injective(s, outs, keep=[anchor])
    result = local_accumulator(s, anchor, out)
    *batch, row, column = s[out].op.axis
    s[out].reorder(*batch, column, row)
    matrix, panels = s[out].fuse(*batch, column), operands(anchor)[1]
    if isinstance(panels.op, te.PlaceholderOp):
        used = s.cache_read(panels, "global", [result])
        s[used].compute_at(s[out], matrix)
        _, inner = s[used].split(s[used].op.axis[-2], factor=lanes)
        s[used].vectorize(inner)
    parallel(s, out, row, _work(out, anchor), lanes)
    s[result].compute_at(s[out], row)
    vectorize_reduction(s, result, lanes, (out, row))
    return s


def _columns_per_step(rows: int, lanes: int, target: Target, limit: int) -> int:
    """Columns whose vector accumulators are in registers together; they divide a vector of results."""
    most = max(int(_SHARE_OF_SUMS * target.vector_registers) // rows, 1)
    return min(1 << (most.bit_length() - 1), limit, lanes)


def _several_columns(kernel: KernelFacts) -> te.Schedule | Refused:
    """A vector of results at a time: a vector accumulator for each, whose lanes are reduced together."""
    anchor, target, lanes = kernel.anchor, kernel.target, vector_lanes(kernel.target)
    columns, steps = extent_of(anchor.axis[-1]), extent_of(anchor.reduce_axis[0])
    if not isinstance(steps, int) or not isinstance(columns, int) or columns < lanes:
        return Refused("dynamic sizes, or fewer columns than a vector has lanes")
    s = kernel.create_schedule()
    rows = constant_size([extent_of(anchor.axis[-2])])
    sums, vectors = _lane_sums(s, anchor, lanes)
    out = s.outputs[0].output(0)
    inline_injective(s, [out], keep=[sums.op, vectors.op])
    result = local_accumulator(s, sums.op, out)
    *batch, row, column = s[out].op.axis
    group, column = s[out].split(column, factor=lanes, tail="shift")
    looked_up = len(batch) == 1 and not isinstance(operands(anchor)[1].op, te.PlaceholderOp)
    if looked_up:
        block, each = s[out].split(*batch, factor=_LOOKED_UP)
        s[out].reorder(block, group, each, row, column)
        parallel(s, out, s[out].fuse(block, group), _work(out, anchor), lanes)
    else:
        s[out].reorder(*batch, group, row, column)
        each = s[out].fuse(*batch, group)
        parallel(s, out, each, _work(out, anchor), lanes)
    s[out].vectorize(column)
    s[result].compute_at(s[out], each)
    s[result].tensorize(s[result].op.axis[-1], sum_rows(lanes, lanes, len(sums.shape), str(sums.dtype)))

    local = s.cache_write(vectors, "local")
    assert isinstance(local, te.Tensor)
    s[vectors].set_scope("local")
    s[vectors].compute_at(s[out], each)
    *_, m, n, lane = s[vectors].op.axis
    limit = _COLUMNS_LOOKED_UP if looked_up else _COLUMNS
    outer, n = s[vectors].split(n, factor=_columns_per_step(rows, lanes, target, limit))
    s[vectors].reorder(outer, m, n, lane)
    s[vectors].unroll(m)
    s[vectors].unroll(n)
    s[vectors].vectorize(lane)
    s[local].compute_at(s[vectors], outer)
    *_, m, n, lane = s[local].op.axis
    (over,) = s[local].op.reduce_axis
    s[local].reorder(over, m, n, lane)
    s[local].pragma(over, "loop_partition_hint")
    s[local].unroll(m)
    s[local].unroll(n)
    s[local].vectorize(lane)
    return s


def _columns_across(kernel: KernelFacts) -> te.Schedule | Refused:
    """For a row-major right operand: tiles of all rows by as many columns as there are registers for."""
    anchor, out, lanes = kernel.anchor, kernel.out, vector_lanes(kernel.target)
    if anchor.attrs["transpose_b"]:
        return Refused("the right operand is transposed: the reduction is contiguous")
    s = kernel.create_schedule()
    inline_injective(s, kernel.outs, keep=[anchor])
    rows, columns = [extent_of(axis) for axis in anchor.axis[-2:]]
    assert isinstance(rows, int) and isinstance(columns, int)
    result = local_accumulator(s, anchor, out)
    *batch, row, column = s[out].op.axis
    width = lanes * min(max(_VECTORS_OF_FEW_ROWS // rows, 1), columns // lanes)
    column_outer, column_inner = s[out].split(column, factor=1 << (width.bit_length() - 1), tail="shift")
    s[out].reorder(*batch, column_outer, row, column_inner)
    tile = s[out].fuse(*batch, column_outer)
    parallel(s, out, tile, _work(out, anchor), lanes)
    s[out].vectorize(column_inner)
    s[result].compute_at(s[out], tile)
    *_, m, n = s[result].op.axis
    s[result].reorder(*s[result].op.reduce_axis, m, n)
    s[result].unroll(m)
    s[result].vectorize(n)
    return s


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("stage by stage", _stagewise),
    ("columns of the right operand in vectors", _columns_across),
    ("sums of the lanes of several columns", _several_columns),
    ("each result as a sum of vectors", _along),
)
