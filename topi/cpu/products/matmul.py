"""Matrix products on CPUs: one register tile per step of the outer loops, the whole reduction inside it.

The right operand is packed in panels, [N/NR][K][NR]. A panel stays in the first two cache levels while the row tiles
pass over it, so panels are outside of rows where `ProductPlan` finds nothing better; large products have blocks of rows
outside of the panels. Rows that do not divide are covered by a last tile that is shifted inwards: every tile runs the
same unguarded code.
"""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, first_of
from relayc.te.tir import EQ, GT, convert
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import (
    local_accumulator,
    operands,
    panel_width,
    parallel,
    split_columns,
    vectorize_panel,
    vectorize_runs,
)
from relayc.topi.cpu.elements import functions_behind
from relayc.topi.cpu.products.amx import plan_tiles, schedule_tiles, tile_plans
from relayc.topi.cpu.products.gemv import single_column
from relayc.topi.cpu.products.narrow import paired_data, schedule_pairs, widened_weights
from relayc.topi.cpu.products.panel_prefetch import (
    FEWEST_UNROLLED,
    UNROLLED_STEPS,
    stream_panels,
    stream_results,
    stream_widened,
)
from relayc.topi.cpu.products.plan import ProductPlan, fewer_rows, has_few_channels, has_narrow_last, plan_product
from relayc.topi.cpu.products.split_k import sum_split_k
from relayc.topi.cpu.products.store_order import StoreOrder, store_transposed
from relayc.topi.cpu.tiling import FEW_ROWS, FEWEST_AMX_ROWS, at_precision_of, tile_rows, vector_lanes
from relayc.topi.groups import constant_size, extent_of, factor_of, inline_injective
from relayc.topi.registry import register_schedule
from relayc.topi.utils import num_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr
    from relayc.topi.cpu.products.amx import TilePlan

__all__ = [
    "for_any_rows", "place_panels", "schedule_amx", "schedule_batch_matmul_packed", "schedule_dense_packed",
    "tile_product",
    "tile_results", "versions",
]  # fmt: skip


def _tile_output(
    s: te.Schedule, out: te.Tensor, accumulator: te.Tensor, batch: list[te.IterVar], row: te.IterVar,
    column: te.IterVar, columns: te.Dim, plan: ProductPlan, work: float, lanes: int, *, chains: bool = False,
    run: int = 0,
) -> te.IterVar:  # fmt: skip
    """Tile `row` x `column`, of so many `columns`, of the output as planned; the accumulator is computed tile by tile.

    `chains` of elementwise operations take some rows of a tile at a time. `run` columns are contiguous in memory; 0
    where all of a row are. Returns the loop that a tile is inside of.

    With whole panels everything outside the tile is one parallel loop, evenly shared; so it is with a narrow last
    panel, whose tiles are distinguished by a branch, and with a masked one where panels come first. Other partial
    panels keep the panel loop apart, so that the guard can be peeled off: inside the blocks of rows, which are parallel
    (one tile where there are none), or around everything.
    """
    masked = plan.masked_last
    in_masks = plan.narrow_last or (masked and plan.panels_first)
    one_loop = in_masks or (isinstance(columns, int) and columns % plan.panel == 0)
    blocks: list[te.IterVar] = []
    if plan.tiles_per_step:
        block, row = s[out].split(row, factor=plan.height * plan.tiles_per_step, tail="shift")
        blocks = [block]
    row_outer, row_inner = s[out].split(row, factor=plan.height, tail="shift" if plan.height > 1 else "guard")
    if plan.tiles_of_a_block and (one_loop or plan.shared_blocks):
        tiles = plan.tiles_of_even_blocks(num_elements(StoreOrder.of(out).result.shape[:-1]))
        block, row_outer = s[out].split(row_outer, factor=tiles)
        blocks = [block]
    column_outer, column_inner = split_columns(s, out, column, columns, plan.panel, plan.width, masked=masked)
    if one_loop and plan.groups_of_a_block:
        block, group = s[out].split(s[out].fuse(*batch), factor=plan.groups_of_a_block)
        s[out].reorder(block, *column_outer, group, row_outer, row_inner, column_inner)
        parallel(s, out, s[out].fuse(block, *column_outer), work, lanes)
        tile = row_outer
    elif one_loop and not plan.separate_panels and not plan.shared_blocks:
        s[out].reorder(*batch, *blocks, *column_outer, row_outer, row_inner, column_inner)
        tile = s[out].fuse(*batch, *blocks, *column_outer, row_outer)
        parallel(s, out, tile, work, lanes)
    elif plan.panels_first and not batch and not plan.shared_blocks:
        s[out].reorder(*column_outer, row_outer, row_inner, column_inner)
        parallel(s, out, column_outer[0], work, lanes)
        tile = row_outer
    elif blocks:
        s[out].reorder(*batch, *blocks, *column_outer, row_outer, row_inner, column_inner)
        parallel(s, out, s[out].fuse(*batch, *blocks), work, lanes)
        tile = row_outer
    else:
        s[out].reorder(*batch, row_outer, *column_outer, row_inner, column_inner)
        parallel(s, out, s[out].fuse(*batch, row_outer), work, lanes)
        tile = column_outer[-1]
    apart = plan.narrow_last or plan.panels_of_a_tile > 1
    _tile(s, out, accumulator, tile, row_inner, column_inner, plan, lanes, chains=chains, apart=apart, run=run)
    return tile


def _tile(
    s: te.Schedule, out: te.Tensor, accumulator: te.Tensor, tile: te.IterVar, row: te.IterVar, column: te.IterVar,
    plan: ProductPlan, lanes: int, *, chains: bool, apart: bool, run: int = 0,
) -> None:  # fmt: skip
    """One register tile, of the loops `row` and `column` inside of `tile`: its sums, then the elementwise tail.

    Its vectors are guarded one by one (`apart`) where the last ones of a panel are used in part or not at all.
    """
    if chains:
        _, row = s[out].split(row, factor=_rows_per_step(plan, lanes))
    s[out].unroll(row)
    vectorize_runs(s, out, column, plan.width, lanes, run, apart=apart)

    s[accumulator].compute_at(s[out], tile)
    *_, m, n = s[accumulator].op.axis
    s[accumulator].reorder(*s[accumulator].op.reduce_axis, m, n)
    s[accumulator].unroll(m)
    vectorize_panel(s, accumulator, n, plan.width, lanes, apart=apart)


def _results(
    s: te.Schedule, results: te.Tensor, tile: te.IterVar, plan: ProductPlan, lanes: int, *, chains: bool
) -> None:
    """The elementwise tail of a tile's sums, where its reader stores it in another layout."""
    (reader,) = s.outputs
    s[results].compute_at(s[reader], tile)
    row, column = s[results].op.axis
    if chains:
        _, row = s[results].split(row, factor=_rows_per_step(plan, lanes))
    s[results].unroll(row)
    vectorize_panel(s, results, column, plan.width, lanes, apart=plan.narrow_last)


_FEW_ROWS = (4, 2, 1)
"""Heights of tiles for fewer of a dynamic number of rows than half a tile has: two at most pass over a panel."""
_CHAINS = 4
"""Vectors of mathematical functions that are computed together: all of a tile would spill each other."""


def _rows_per_step(plan: ProductPlan, lanes: int) -> int:
    """Rows of a tile whose vectors are as many as are computed together."""
    most = max(_CHAINS * lanes // plan.width, 1)
    return max(n for n in range(1, most + 1) if plan.height % n == 0)


@register_schedule("dense_packed", "cpu")
def schedule_dense_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[m, n] = sum_k A[m, k] * B[n // NR, k, n % NR], with whatever elementwise tail follows."""
    target = at_precision_of(target, anchor.output(0).dtype)
    tiles = plan_tiles(outs[0], anchor, target)

    def by_vectors() -> te.Schedule:
        plan = plan_product(StoreOrder.of(outs[0]).result, anchor, target)
        return for_any_rows(_dense_packed, outs, anchor, target, plan, outs[0].shape[:-1], _FEW_ROWS)

    def one_by_one() -> te.Schedule:
        plan = plan_product(StoreOrder.of(outs[0]).result, anchor, target)
        return _dense_packed(outs, anchor, target, [plan, *fewer_rows(plan)][-1])

    def by_tiles() -> te.Schedule | Refused:
        return schedule_amx(outs, anchor, target, tiles, one_by_one) if tiles else tiles

    return first_of("product", (("AMX tiles", by_tiles), ("register tiles", by_vectors)))


def schedule_amx(
    outs: list[te.Tensor], anchor: te.Operation, target: Target, tiles: TilePlan, few: Callable[[], te.Schedule]
) -> te.Schedule:
    """A schedule by AMX's tiles; of a dynamic number of rows others for fewer, and `few` for those that don't pay."""
    fewest = FEWEST_AMX_ROWS[anchor.attrs["form"]]
    schedules = [schedule_tiles(outs, anchor, target, plan) for plan in tile_plans(tiles, fewest)]
    return versions([*schedules, few()] if not tiles.block and fewest > 1 else schedules)


def for_any_rows(
    schedule: Callable[[list[te.Tensor], te.Operation, Target, ProductPlan], te.Schedule],
    outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan, rows: Sequence[te.Dim],
    heights: Sequence[int] = (1,),
) -> te.Schedule:  # fmt: skip
    """A schedule as planned; where `rows` are dynamic, others for fewer of them, down to `heights`: up to two tiles of
    the first, and of half a tile where that is higher than `heights`."""
    fewer = [] if all(isinstance(d, int) for d in rows) else fewer_rows(plan, heights)
    count, in_two = convert(num_elements(rows)), [p.height for p in fewer if p is fewer[0] or p.height > heights[0]]
    schedules = [schedule(outs, anchor, target, p) for p in (plan, *fewer)]
    return versions(schedules, [GT(count, te.const(2 * height)) for height in in_two])


def versions(schedules: Sequence[te.Schedule], unless: Sequence[PrimExpr] = ()) -> te.Schedule:
    """The first schedule; where there are fewer rows than its tiles have, or the first of the conditions `unless` does
    not hold, the next one, and so on."""
    for (s, smaller), condition in itertools.zip_longest(pairwise(schedules), unless):
        s.specialize_small(smaller, condition)
    return schedules[0]


def _dense_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan) -> te.Schedule:
    s = te.create_schedule([out.op for out in outs])
    pairs = paired_data(anchor)
    inline_injective(s, outs, keep=[anchor, *StoreOrder.of(outs[0]).kept, *widened_weights(anchor), *pairs])
    for op in pairs:
        schedule_pairs(s, op, target)
    by_parts = plan.depth and not StoreOrder.of(outs[0]).is_transposed
    (sum_split_k if by_parts else tile_product)(s, outs[0], anchor, target, plan)
    return s


def tile_product(
    s: te.Schedule, out: te.Tensor, anchor: te.Operation, target: Target, plan: ProductPlan
) -> te.Tensor:
    """Tile the product of `anchor`, rows by columns, and its elementwise tail up to `out`, in its store order.

    Returns the tile of register accumulators.
    """
    steps = constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    accumulator = tile_results(s, out, anchor, target, plan, steps)
    for weights in widened_weights(anchor):
        _place_widened(s, out, accumulator, weights.output(0), plan, target)
    _unroll_few_channels(s, accumulator, plan.height)
    if plan.tiles_of_a_panel:
        stream_panels(s, accumulator, operands(anchor)[1], plan, target)
    _split_dynamic_sum(s, accumulator, plan, target)
    if out is StoreOrder.of(out).result:
        stream_results(s, accumulator, out, anchor, plan, target)
    return accumulator


def tile_results(
    s: te.Schedule, out: te.Tensor, anchor: te.Operation, target: Target, plan: ProductPlan, steps: int, *,
    in_groups: bool = False,
) -> te.Tensor:  # fmt: skip
    """Tile the results of `anchor`, sums of `steps` products, rows by columns, and their elementwise tail up to `out`.

    `in_groups` (T, rows, columns) the tiles are those of each. Returns the tile of register accumulators, whose
    reduction is one loop around the tile.
    """
    lanes, order = vector_lanes(target), StoreOrder.of(out)
    work = 2.0 * constant_size(out.shape) * steps
    chains = bool(functions_behind(out, anchor))
    if order.is_transposed:
        accumulator = local_accumulator(s, anchor, order.source)
        outside = store_transposed(s, out, order.source, plan, target)
        parallel(s, out, outside, work, lanes)
        *row_axes, column = s[order.source].op.axis
        row, row_inner = s[order.source].split(s[order.source].fuse(*row_axes), factor=plan.height, tail="shift")
        # LLVM scalarises the transpose of a long vector that is used in part
        apart = constant_size(order.result.shape[-1:]) % plan.panel != 0 or plan.panels_of_a_tile > 1
        _tile(s, order.source, accumulator, row, row_inner, column, plan, lanes, chains=chains, apart=apart)
    else:
        accumulator = local_accumulator(s, anchor, out)
        batch, row, column = order.loops_of_matrices(s, out) if in_groups else ([], *order.loops(s, out))
        columns = order.result.shape[-1]
        whole = order.in_whole_vectors(s, out, anchor, lanes)
        tile = _tile_output(
            s, out, accumulator, batch, row, column, columns, plan, work, lanes, chains=chains and whole is None,
            run=order.run,
        )  # fmt: skip
        if whole is not None:
            _results(s, whole, tile, plan, lanes, chains=chains)
    return accumulator


def _place_widened(
    s: te.Schedule, out: te.Tensor, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Convert weights stored in a smaller type: each panel once for all rows, or at use where one row tile is all that
    reads them."""
    if not plan.separate_panels:
        s[weights].compute_inline()
        return
    place_panels(s, out, weights, target)
    if plan.tiles_of_a_panel and constant_size(weights.shape) >= _MANY_WEIGHTS:
        stream_widened(s, accumulator, weights, plan, target)


def place_panels(s: te.Schedule, out: te.Tensor, weights: te.Tensor, target: Target) -> te.IterVar:
    """Convert a panel of weights in the outermost loop of `out`, for all row tiles; returns the loop over its lines."""
    s[weights].compute_at(s[out], s[out].leaf_iter_vars[0])
    *_, line, lane = s[weights].op.axis
    vectorize_panel(s, weights, lane, constant_size(weights.shape[-1:]), vector_lanes(target))
    return line


_MANY_WEIGHTS = 1 << 15
"""Fewest weights that are prefetched: fewer stay in the caches, or are read too quickly for prefetches to pay."""


def _unroll_few_channels(s: te.Schedule, accumulator: te.Tensor, rows: int) -> None:
    """Unroll the loops over an image's few channels and a line's taps: iterations are too short for loops.

    Neighbouring windows share pixels, which the compiler then keeps in registers: only as many as it has, of `rows`.
    Where a loop is left, steps of dynamic strides are loops, too: each row would have an address for each of them.
    """
    if not has_few_channels(s[accumulator].op):
        return
    steps, axes, unrolled = 1, s[accumulator].op.reduce_axis, list[te.IterVar]()
    for axis in reversed(axes):
        steps *= constant_size([extent_of(axis)])
        if steps <= _SHORT and steps * rows <= _MOST_VALUES:
            unrolled.append(axis)
    for axis in unrolled:
        if len(unrolled) == len(axes) or _has_constant_stride(s[accumulator].op, axis):
            s[accumulator].unroll(axis)


def _has_constant_stride(op: te.Operation, axis: te.IterVar) -> bool:
    """Whether a step along an axis is a constant distance in memory, in all tensors that are read."""
    return all(
        isinstance(extent, int)
        for tensor, index in reads(op)
        for place, position in enumerate(index)
        if axis.var in post_order((position,))
        for extent in tensor.shape[place + 1 :]
    )


def _split_dynamic_sum(s: te.Schedule, accumulator: te.Tensor, plan: ProductPlan, target: Target) -> None:
    """Split a reduction of a dynamic number of steps by a common factor, so that the code generator unrolls the loop
    inside."""
    *_, k = s[accumulator].op.reduce_axis
    extent = extent_of(k)
    split = k not in s[accumulator].leaf_iter_vars
    if split or isinstance(extent, int) or plan.height * -(-plan.width // vector_lanes(target)) < FEWEST_UNROLLED:
        return
    every = max(n for n in range(1, UNROLLED_STEPS + 1) if factor_of(extent) % n == 0)
    if every > 1:
        s[accumulator].split(k, factor=every)


_SHORT, _MOST_VALUES = 24, 144
"""Steps of the reduction that are unrolled, and values of the left operand that they read, at most."""


_NOTABLE_COLUMNS = 0.05
"""Fewest columns, as a part of all, that vectors unused by the last panel cover, for them to be skipped: the branch
takes a little longer (128 x 1000 x 512, a 60th: 1.05 times as long; 197 x 197 x 64, a 12th: 0.94)."""


def _saves_vectors(columns: te.Dim, rows: int, panel: int, target: Target) -> bool:
    """Whether a narrow last panel saves a notable part of the vectors."""
    if not isinstance(columns, int) or not has_narrow_last(target, rows, columns, panel):
        return False
    lanes = vector_lanes(target)
    return -columns % panel // lanes * lanes >= _NOTABLE_COLUMNS * columns


@register_schedule("batch_matmul_packed", "cpu")
def schedule_batch_matmul_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[b, m, n] = sum_k A[b, m, k] * P[b, n // NR, k, n % NR]."""
    target, panel = at_precision_of(target, anchor.output(0).dtype), panel_width(anchor)
    rows = constant_size([extent_of(anchor.axis[-2])])
    steps = constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    apart = 0 if anchor.attrs["transpose_a"] else anchor.output(0).dtype.nbytes * steps
    narrow = _saves_vectors(StoreOrder.of(outs[0]).result.shape[-1], rows, panel, target)
    plan = ProductPlan(tile_rows(target, rows, panel, steps, apart=apart), panel, panel, narrow_last=narrow)
    s = for_any_rows(_batch_matmul_packed, outs, anchor, target, plan, [extent_of(anchor.axis[-2])])
    columns = outs[0].shape[-1]
    if isinstance(columns, int):
        return s
    column = single_column(outs, anchor, target)
    if not column:
        return s
    column.specialize_small(s, unless=EQ(columns, te.const(1)))
    return column


def _pack(s: te.Schedule, panels: te.Tensor, target: Target) -> None:
    """Pack the right operand before the product of many rows; threads share the panels."""
    *outer, _, lane = s[panels].op.axis
    lanes = vector_lanes(target)
    parallel(s, panels, s[panels].fuse(*outer), constant_size(panels.shape), lanes)
    vectorize_panel(s, panels, lane, constant_size(panels.shape[-1:]), lanes)


def _batch_matmul_packed(
    outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan
) -> te.Schedule:
    s = te.create_schedule([out.op for out in outs])
    out, panels = outs[0], operands(anchor)[1]
    packs = isinstance(panels.op, te.ComputeOp) and plan.height > FEW_ROWS
    inline_injective(s, outs, keep=[anchor, panels.op] if packs else [anchor])
    if packs:
        _pack(s, panels, target)
    accumulator = local_accumulator(s, anchor, out)
    order = StoreOrder.of(out)
    batch, row, column = order.loops_of_matrices(s, out)
    work = 2.0 * constant_size(out.shape) * constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    chains, columns = bool(functions_behind(out, anchor)), order.result.shape[-1]
    _tile_output(
        s, out, accumulator, batch, row, column, columns, plan, work, vector_lanes(target), chains=chains,
        run=order.run,
    )  # fmt: skip
    return s
