"""Matrix products on CPUs: one register tile per step of the outer loops, the whole reduction inside it.

The right operand is packed in panels, [N/NR][K][NR]. A panel stays in the first two cache levels while the row tiles
pass over it, so panels are the outer loop. Rows that do not divide are covered by a last tile that is shifted inwards:
every tile runs the same unguarded code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import te
from topi.cpu.common import local_accumulator, panel_width, parallel, split_columns, tile_columns, vectorize_panel
from topi.cpu.injective import vectorize_elements
from topi.cpu.reduction import vectorize_reduction
from topi.cpu.stagewise import schedule_stagewise
from topi.cpu.tiling import largest_share, reads_in_place, tile_rows, vector_lanes
from topi.groups import constant_size, extent_of, inline_injective
from topi.registry import register_schedule
from topi.tuning import choose
from topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backend.target import Target

__all__ = ["schedule_batch_matmul", "schedule_batch_matmul_packed", "schedule_dense_packed", "tile_product"]

_SHARERS = 4
"""Among which the last cache is divided: cores, and what else a kernel reads and writes."""
_NOTABLY = 0.9
"""The part of a core's largest share of the rows that its share of the panels has to be for panels to be shared."""
_BLOCKS_OF_A_CORE = 8
"""Blocks of rows for each core, at least, where these are what threads share."""


def _tile_output(
    s: te.Schedule, out: te.Tensor, accumulator: te.Tensor, batch: list[te.IterVar], row: te.IterVar,
    column: te.IterVar,
    rows: int, columns: int, panel: int, work: float, lanes: int, panels_first: bool = False, tiles_at_once: int = 0,
    apart: bool = False,
) -> None:  # fmt: skip
    """Tile `row` x `column` of the output by `rows` x `columns`; the accumulator is computed tile by tile.

    With whole panels everything outside the tile is one loop, shared evenly between threads; all panels pass over
    blocks of `tiles_at_once` row tiles, if that is not 0. A partial last panel keeps the panel loop apart, so that its
    guard can be peeled off: inside the blocks, which are shared between threads (of one tile where `tiles_at_once` is
    0), or around everything with `panels_first`, which reads each panel once and shares panels; there also `apart`
    from whole panels.
    """
    extent = extent_of(column)
    whole = isinstance(extent, int) and extent % panel == 0
    blocks: list[te.IterVar] = []
    if tiles_at_once:
        block, row = s[out].split(row, factor=rows * tiles_at_once, tail="shift")
        blocks = [block]
    row_outer, row_inner = s[out].split(row, factor=rows, tail="shift")
    column_outer, column_inner = split_columns(s, out, column, panel, columns)
    if whole and not apart:
        s[out].reorder(*batch, *blocks, *column_outer, row_outer, row_inner, column_inner)
        tile = s[out].fuse(*batch, *blocks, *column_outer, row_outer)
        parallel(s, out, tile, work, lanes)
    elif panels_first and not batch:
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
    s[out].unroll(row_inner)
    vectorize_panel(s, out, column_inner, columns, lanes)

    s[accumulator].compute_at(s[out], tile)
    *_, m, n = s[accumulator].op.axis
    s[accumulator].reorder(*s[accumulator].op.reduce_axis, m, n)
    s[accumulator].unroll(m)
    vectorize_panel(s, accumulator, n, columns, lanes)


@register_schedule("dense_packed", "cpu")
def schedule_dense_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[m, n] = sum_k A[m, k] * B[n // NR, k, n % NR], with whatever elementwise tail follows."""
    s = te.create_schedule([out.op for out in outs])
    pairs = paired_data(anchor)
    inline_injective(s, outs, keep=[anchor, *widened_weights(anchor), *pairs])
    for op in pairs:
        schedule_pairs(s, op, target)
    tile_product(s, outs[0], anchor, target)
    return s


def paired_data(anchor: te.Operation) -> list[te.Operation]:
    """The stage that brings the product's data together in pairs, if it is read without a border around it."""
    return [t.op for t in anchor.input_tensors if t.op.tag == "int16_pairs"]


def schedule_pairs(s: te.Schedule, pairs: te.Operation, target: Target) -> None:
    """Vectors along memory, lines shared between threads."""
    result, lanes = pairs.output(0), vector_lanes(target)
    *lines, last = s[result].op.axis
    parallel(s, result, s[result].fuse(*lines), constant_size(result.shape) * 4.0, lanes)
    vectorize_elements(s, result, last, extent_of(last), lanes)


def widened_weights(anchor: te.Operation) -> list[te.Operation]:
    """The stage that widens the product's weights, if there is one."""
    return [t.op for t in anchor.input_tensors if t.op.tag == "widened_weights"]


_LINES = 8
"""Lines of weights that are made floats at a time: few enough to stay in the first-level cache beside the data."""


@register_schedule("dense_bits", "cpu")
def schedule_dense_bits(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[m, n] = sum_k A[m, k] * B[n // NR, k, n % NR], B being made of codes for each tile, some lines at a time."""
    s = te.create_schedule([out.op for out in outs])
    weights = anchor.input_tensors[1]
    inline_injective(s, outs, keep=[anchor, weights.op])
    accumulator = tile_product(s, outs[0], anchor, target)
    (k,) = s[accumulator].op.reduce_axis
    outer, inner = s[accumulator].split(k, factor=min(_LINES, weights.op.attrs["block"]))
    s[accumulator].unroll(inner)
    s[weights].set_scope("local")
    s[weights].compute_at(s[accumulator], outer)
    _, line, lane = s[weights].op.axis
    s[weights].unroll(line)
    vectorize_panel(s, weights, lane, panel_width(anchor), vector_lanes(target))
    return s


def tile_product(s: te.Schedule, out: te.Tensor, anchor: te.Operation, target: Target) -> te.Tensor:
    """Tile the product that `anchor` computes, rows by columns, and what follows it up to `out` (..., columns).

    Returns the tile that it is summed in.
    """
    panel = panel_width(anchor) if anchor.attrs["groups"] == 1 else anchor.attrs["outputs"]
    steps = constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    accumulator = local_accumulator(s, anchor, out)
    *row_axes, column = s[out].op.axis
    rows = constant_size([extent_of(axis) for axis in row_axes])
    columns = constant_size([extent_of(column)])
    work = 2.0 * rows * columns * steps
    width = tile_columns(target, anchor, rows, steps)
    panels = -(-columns // width)
    windows = constant_size([extent_of(axis) for axis in anchor.reduce_axis[:-1]]) > 1
    line = constant_size([extent_of(row_axes[-1])]) if windows else 0
    narrow = widened_weights(anchor)
    temporaries = 1 if any(weights.attrs.get("pairs") for weights in narrow) else 0
    height = tile_rows(target, rows, width, steps, panels, line, temporaries)
    row = s[out].fuse(*row_axes)
    packed_bytes = constant_size(anchor.input_tensors[1].shape) * anchor.input_tensors[1].dtype.nbytes
    by_rows = largest_share(-(-rows // height), target.num_cores)
    by_panels = largest_share(-(-columns // panel), target.num_cores)
    exceeds_caches = packed_bytes > max(target.cache_bytes)
    panels_first = exceeds_caches or by_panels < _NOTABLY * by_rows
    lanes = vector_lanes(target)
    whole = columns % panel == 0
    blocks = not exceeds_caches and (whole or not panels_first)
    at_once = _tiles_at_once(anchor, out, rows, height, panel, target) if blocks else 0
    if whole and columns > panel and not at_once:
        at_once = _tiles_of_a_core(anchor, packed_bytes, rows, height, target)
    if rows <= height:  # one row tile is all that reads the weights: no copy of them
        for weights in narrow:
            s[weights].compute_inline()
        narrow = []
    if narrow:
        panels_first, at_once = True, 0
    elif whole and columns > panel:
        at_once = choose("tiles at once", at_once, _block_sizes(-(-rows // height)))
    _tile_output(
        s, out, accumulator, [], row, column, height, width, panel, work, lanes, panels_first, at_once, bool(narrow)
    )
    for weights in narrow:  # each panel once, for all rows
        s[weights].compute_at(s[out], s[out].leaf_iter_vars[0])
        vectorize_panel(s, weights.output(0), s[weights].op.axis[-1], panel_width(anchor), lanes)
    _unroll_few_channels(s, accumulator)
    if width == panel and (whole or panels_first):
        _stream_panels(s, accumulator, anchor.input_tensors[1], height, at_once or -(-rows // height), target)
    return accumulator


def _unroll_few_channels(s: te.Schedule, accumulator: te.Tensor) -> None:
    """Write out the loops over an image's few channels and a line's taps: iterations are too short for loops."""
    *_, inputs = s[accumulator].op.reduce_axis
    if constant_size([extent_of(inputs)]) > _FEW_CHANNELS:
        return
    steps = 1
    for axis in reversed(s[accumulator].op.reduce_axis):
        steps *= constant_size([extent_of(axis)])
        if steps <= _SHORT:
            s[accumulator].unroll(axis)


_FEW_CHANNELS = 3
_SHORT = 24
"""Steps of the reduction that are written out, at most."""


def _stream_panels(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, height: int, tiles: int, target: Target
) -> None:
    """Fetch the next panel of constant weights while the row tiles pass over this one, a part in each tile.

    Weights come from memory, which the tile that reads a panel first would wait for: as long as several others take.
    """
    panels, *inner, width = [constant_size([d]) for d in weights.shape]
    *_, k = s[accumulator].op.reduce_axis
    depth = extent_of(k)
    if not isinstance(weights.op, te.PlaceholderOp) or not isinstance(depth, int) or panels < 2 * target.num_cores:
        return
    if not choose("stream panels", True, (True, False)):
        return
    every = max(d for d in range(1, min(tiles, _MOST_STEPS_A_LINE) + 1) if depth % d == 0)
    if every < _FEWEST_STEPS_A_LINE:
        return
    steps = constant_size(inner)
    outer, _ = s[accumulator].split(k, factor=every)
    shape = [extent_of(axis) for axis in s[accumulator].op.axis[:-1]]

    def line(element: int) -> Callable[..., Sequence[Any]]:
        def place(*first: Any) -> Sequence[Any]:
            row, n, step = first[: len(shape)], first[len(shape)], first[len(shape) + 1 :]
            tile = (ravel_index(row, shape) + height - 1) // height % tiles
            ahead = te.min(tile * (steps // every) + ravel_index(step, inner) // every, steps - 1)
            return (n // width + 1, *unravel_index(ahead, inner), element)

        return place

    for element in range(0, width, _LINE_BYTES // weights.dtype.nbytes):
        s[accumulator].prefetch_line(weights, outer, line(element))


_LINE_BYTES = 64
_FEWEST_STEPS_A_LINE, _MOST_STEPS_A_LINE = 4, 64
"""Steps of the reduction for each line of a panel that is fetched ahead: fewer cost more than they gain."""


def _tiles_at_once(
    anchor: te.Operation, out: te.Tensor, rows: int, height: int, panel: int, target: Target
) -> int:
    """Row tiles that all panels pass over before the next ones: what they read takes half of the second-level cache.

    0 where one panel is all, as rows are read once then anyway, or where the rows are counted at run time. With whole
    panels also where the left operand stays in a core's part of the last cache, from where it is read fast enough,
    unless there are groups, of which each reads a part of the rows. With a partial panel there are blocks enough for
    the cores.
    """
    left, columns = anchor.input_tensors[0], constant_size([out.shape[-1]])
    if not all(isinstance(d, int) for d in left.shape) or columns <= panel:
        return 0
    nbytes = constant_size(left.shape) * left.dtype.nbytes
    caches = target.cache_bytes
    tiles = -(-rows // height)
    blocks = -(-nbytes // (caches.l2 // 2))
    if columns % panel:
        blocks = max(blocks, _BLOCKS_OF_A_CORE * target.num_cores)
    elif nbytes <= max(caches.l3 // _SHARERS, caches.l2) and anchor.attrs["groups"] == 1:
        return 0
    return 0 if blocks >= tiles else -(-tiles // blocks)


def _block_sizes(tiles: int) -> list[int]:
    """Numbers of row tiles that all panels may pass over before the next ones; 0 for all tiles."""
    return [0, *dict.fromkeys(-(-tiles // parts) for parts in (2, 4, 8, 16, 32) if tiles >= _FEWEST_TILES * parts)]


def _tiles_of_a_core(anchor: te.Operation, packed_bytes: int, rows: int, height: int, target: Target) -> int:
    """Row tiles of which each core gets blocks, all panels passing over each, where that costs next to no more tiles.

    A core then reads its part of the left operand alone, and what it wrote before is in its own caches. 0 where the
    weights are not much smaller: there cores share the panels, and each reads a part of them.
    """
    left = anchor.input_tensors[0]
    nbytes = constant_size(left.shape) * left.dtype.nbytes
    tiles = -(-rows // height)
    known = all(isinstance(d, int) for d in left.shape)
    if not known or target.num_cores == 1 or nbytes < _MUCH_LARGER * packed_bytes:
        return 0

    def waste(at_once: int) -> float:
        return -(-tiles // at_once) * at_once / tiles - 1

    most = -(-tiles // target.num_cores)
    sizes = [n for n in range(most, max(most // 2, _FEWEST_TILES) - 1, -1) if waste(n) <= _WASTE]
    return max(sizes, default=0)


_MUCH_LARGER = 4
"""How many times over the left operand exceeds the weights where cores share its rows, not the panels."""
_FEWEST_TILES = 8
"""Tiles that a panel passes over at least, while it is in the first-level cache."""
_WASTE = 0.01
"""Tiles that are computed twice, as a part of all, at most."""


@register_schedule("batch_matmul_packed", "cpu")
def schedule_batch_matmul_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[b, m, n] = sum_k A[b, m, k] * P[b, n // NR, k, n % NR]."""
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    inline_injective(s, outs, keep=[anchor])
    panel = panel_width(anchor)
    steps = constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    accumulator = local_accumulator(s, anchor, out)
    *batch, row, column = s[out].op.axis
    rows = constant_size([extent_of(row)])
    height = tile_rows(target, rows, panel, steps)
    work = 2.0 * constant_size(out.shape) * steps
    _tile_output(s, out, accumulator, list(batch), row, column, height, panel, panel, work, lanes)
    return s


_VECTORS_OF_FEW_ROWS = 12
"""Accumulators of a tile of few rows: wide tiles read long pieces of each row of the right operand."""


@register_schedule("batch_matmul", "cpu")
def schedule_batch_matmul(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Products whose right operand is not packed. Few rows: it is read once, along memory; else stage by stage.

    With the right operand transposed, memory runs along the reduction: each result is a sum of vectors. Otherwise a
    tile holds all rows of as many columns as there are registers for.
    """
    lanes = vector_lanes(target)
    rows, columns, steps = [extent_of(axis) for axis in (*anchor.axis[-2:], *anchor.reduce_axis)]
    transposed = anchor.attrs["transpose_a"], anchor.attrs["transpose_b"]
    if anchor.output(0).dtype != "float32" or not reads_in_place(target, rows, columns, steps, *transposed):
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs, keep=[anchor])
    out = outs[0]
    result = local_accumulator(s, anchor, out)
    *batch, row, column = s[out].op.axis
    work = 2.0 * constant_size([extent_of(axis) for axis in (*s[out].op.axis, *anchor.reduce_axis)])
    if transposed == (False, True):
        s[out].reorder(*batch, column, row)
        each = s[out].fuse(*batch, column)
        parallel(s, out, each, work, lanes)
        s[result].compute_at(s[out], row)
        for partial in vectorize_reduction(s, result, lanes):
            s[partial].compute_at(s[out], row)
        return s
    assert isinstance(rows, int) and isinstance(columns, int)
    width = lanes * min(max(_VECTORS_OF_FEW_ROWS // rows, 1), columns // lanes)
    column_outer, column_inner = s[out].split(column, factor=1 << (width.bit_length() - 1), tail="shift")
    s[out].reorder(*batch, column_outer, row, column_inner)
    tile = s[out].fuse(*batch, column_outer)
    parallel(s, out, tile, work, lanes)
    s[out].vectorize(column_inner)
    s[result].compute_at(s[out], tile)
    *_, m, n = s[result].op.axis
    s[result].reorder(*s[result].op.reduce_axis, m, n)
    s[result].unroll(m)
    s[result].vectorize(n)
    return s
