"""Products over a long reduction by K-blocks: what a block's tiles read stays in the L2 cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.topi.cpu.common import local_accumulator, operands, panel_width, parallel, vectorize_panel, vectorize_runs
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.products.panel_prefetch import PrefetchSchedule
from relayc.topi.cpu.products.store_order import StoreOrder
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.topi.cpu.products.plan import ProductPlan

__all__ = ["sum_split_k"]


def sum_split_k(s: te.Schedule, out: te.Tensor, anchor: te.Operation, target: Target, plan: ProductPlan) -> None:
    """Threads share blocks of rows x groups of panels. All tiles of one add up a K-block, then the next.

    The sums are in memory of the thread; the elementwise tail up to `out` (..., columns) reads them there.
    """
    lanes, panel = vector_lanes(target), panel_width(anchor)
    sums = local_accumulator(s, anchor, out)
    s[sums].set_scope("global")
    order = StoreOrder.of(out)
    rows = constant_size(order.result.shape[:-1])
    row, column = order.loops(s, out)
    if plan.tiles_per_step:
        rows = plan.height * plan.tiles_per_step
        block, row = s[out].split(row, factor=rows, tail="shift")
    else:
        block, row = s[out].split(row, nparts=1)
    panels, column = s[out].split(column, factor=panel)
    group, panels = s[out].split(panels, factor=plan.panels_per_step)
    s[out].reorder(block, group, row, panels, column)
    block = s[out].fuse(block, group)
    work = 2.0 * constant_size(out.shape) * constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    parallel(s, out, block, work, lanes)
    vectorize_runs(s, out, column, panel, lanes, order.run)

    s[sums].compute_at(s[out], block)
    part, _ = s[sums].split(s[sums].op.reduce_axis[0], factor=plan.depth)
    tile = s.rfactor(sums, part)
    assert isinstance(tile, te.Tensor)
    (part,) = s[sums].op.reduce_axis
    *row_axes, column = s[sums].op.axis
    row, row_inner = s[sums].split(s[sums].fuse(*row_axes), factor=plan.height)
    panels, column = s[sums].split(column, factor=panel)
    s[sums].reorder(part, panels, row, row_inner, column)
    s[sums].unroll(row_inner)
    vectorize_panel(s, sums, column, panel, lanes)
    if rows % plan.height:  # no tile may be shifted inwards: it would add to sums twice
        s[sums].pragma(row, "loop_partition_hint")

    s[tile].set_scope("local")
    s[tile].compute_at(s[sums], row)
    part, *tile_rows, column = s[tile].op.axis
    s[tile].reorder(part, *s[tile].op.reduce_axis, *tile_rows, column)
    for axis in tile_rows:
        s[tile].unroll(axis)
    vectorize_panel(s, tile, column, panel, lanes)
    _fetch_ahead(s, tile, operands(anchor)[1], plan, -(-rows // plan.height))


def _fetch_ahead(s: te.Schedule, tile: te.Tensor, weights: te.Tensor, plan: ProductPlan, tiles: int) -> None:
    """Prefetch the next K-block of a panel, while the `tiles` of a block pass over this one, a piece in each."""
    if not isinstance(weights.op, te.PlaceholderOp):
        return
    width, line = constant_size(weights.shape[-1:]), LINE_BYTES // weights.dtype.nbytes
    schedule = PrefetchSchedule.of(tiles, -(-plan.depth * width // line), plan.depth, plan.depth)
    shape = [extent_of(axis) for axis in s[tile].op.axis[1:-1]]

    def place(number: int) -> Callable[..., Sequence[Any]]:
        def in_next(part: Any, *first: Any) -> Sequence[Any]:
            *row, n, step = first
            panel = n // width
            last = panel % plan.panels_per_step == plan.panels_per_step - 1
            following = te.select(last, panel - plan.panels_per_step + 1, panel + 1)
            passed = schedule.line(ravel_index(row, shape) // plan.height % tiles, step, number)
            return following, te.select(last, part + 1, part) * (plan.depth * width) + passed * line

        return in_next

    loop = schedule.split(s, tile, s[tile].op.reduce_axis[0])
    for number in range(schedule.at_once):
        s[tile].prefetch(weights, loop, te.Prefetch(order=place(number), past_end=True))
