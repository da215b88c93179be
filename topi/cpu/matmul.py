"""Matrix products on CPUs: one register tile per step of the outer loops, the whole reduction inside it.

The right operand is packed in panels, [N/NR][K][NR]. A panel stays in the first two cache levels while the row tiles
pass over it, so panels are the outer loop. Rows that do not divide are covered by a last tile that is shifted inwards:
every tile runs the same unguarded code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import constant_size, inline_injective, local_accumulator, parallel
from topi.cpu.tiling import tile_rows, vector_lanes
from topi.registry import register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_dense_packed"]


@register_schedule("dense_packed", "cpu")
def schedule_dense_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[m, n] = sum_k A[m, k] * B[n // NR, k, n % NR], with whatever elementwise tail follows."""
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    inline_injective(s, outs, keep=[anchor])
    panel = int(anchor.input_tensors[1].shape[-1])
    steps = constant_size([axis.dom.extent for axis in anchor.reduce_axis])
    accumulator = local_accumulator(s, anchor, out)

    *row_axes, column = s[out].op.axis
    rows = constant_size([axis.dom.extent for axis in row_axes])
    row = s[out].fuse(*row_axes)
    row_outer, row_inner = s[out].split(row, factor=tile_rows(target, rows, panel, steps), tail="shift")
    column_outer, column_inner = s[out].split(column, factor=panel)
    s[out].reorder(column_outer, row_outer, row_inner, column_inner)
    tile = s[out].fuse(column_outer, row_outer)
    parallel(s, out, tile, 2.0 * rows * constant_size([column.dom.extent]) * steps, vector_lanes(target))
    s[out].unroll(row_inner)
    s[out].vectorize(column_inner)

    s[accumulator].compute_at(s[out], tile)
    m, n = s[accumulator].op.axis
    s[accumulator].reorder(*s[accumulator].op.reduce_axis, m, n)
    s[accumulator].unroll(m)
    s[accumulator].vectorize(n)
    return s
