"""Products of a single row with weights quantised to 4 or 8 bits on CPUs, with few instructions for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import local_accumulator, parallel, vectorize_panel
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_dense_bits_row"]

_PANELS = 2
"""Panels of a tile, at most: vectors enough to hide most of the latency of multiply-adds, and few enough to stay in
registers."""
_LINES = 4
"""Quantised values of a column that are unrolled."""


@register_schedule("dense_bits_row", "cpu")
def schedule_dense_bits_row(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[n] = sum over blocks b of scale[n, b] * (sum of A[k] * code[n, k] in b) - offset[n, b] * (sum of A[k] in b)."""
    s = te.create_schedule([out.op for out in outs])
    out, panel, lanes = outs[0], anchor.attrs["block"], vector_lanes(target)
    named = {t.op.name: t for t in anchor.input_tensors}
    sums, totals = named["block_sums"], named["block_totals"]
    inline_injective(s, outs, keep=[anchor, sums.op, totals.op])
    for partial in vectorize_reduction(s, totals, lanes):
        s[partial].compute_at(s[totals], s[totals].op.axis[0])
    accumulator = local_accumulator(s, anchor, out)
    *rows, column = s[out].op.axis
    tile = _columns(extent_of(column), panel, target)
    outer, each, lane = _by_panels(s, out, column, tile, panel, lanes)
    s[out].reorder(outer, *rows, each, lane)
    work = 2.0 * constant_size(sums.shape) * constant_size([extent_of(axis) for axis in sums.op.reduce_axis])
    parallel(s, out, outer, work, lanes)
    s[accumulator].compute_at(s[out], rows[-1] if rows else outer)
    (block,) = s[accumulator].op.reduce_axis
    _, each, lane = _by_panels(s, accumulator, s[accumulator].op.axis[-1], tile, panel, lanes)
    s[accumulator].reorder(block, each, lane)
    s[sums].set_scope("local")
    s[sums].compute_at(s[accumulator], block)
    steps, step = s[sums].split(s[sums].op.reduce_axis[0], factor=_LINES)
    _, each, lane = _by_panels(s, sums, s[sums].op.axis[0], tile, panel, lanes)
    s[sums].reorder(steps, step, s[sums].op.axis[1], each, lane)
    s[sums].unroll(step)
    return s


def _columns(columns: te.Dim, panel: int, target: Target) -> int:
    """Columns of a tile: as many panels as divide all columns and leave several tiles to each core."""
    for panels in range(_PANELS, 1, -1):
        whole = isinstance(columns, int) and columns % (panels * panel) == 0
        if whole and columns // (panels * panel) >= 4 * target.num_cores:
            return panels * panel
    return panel


def _by_panels(
    s: te.Schedule, tensor: te.Tensor, column: te.IterVar, tile: int, panel: int, lanes: int
) -> tuple[te.IterVar, te.IterVar, te.IterVar]:
    """The loops over tiles, the panels of one, unrolled, and the columns of a panel, vectorised."""
    outer, inner = s[tensor].split(column, factor=tile)
    each, lane = s[tensor].split(inner, factor=panel)
    s[tensor].unroll(each)
    vectorize_panel(s, tensor, lane, panel, lanes)
    return outer, each, lane
