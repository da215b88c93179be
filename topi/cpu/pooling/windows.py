"""Windows over NHWC images on CPUs: vectors of channels, in tiles of adjacent output columns.

Padding is never materialised: the lines and columns that touch it run a copy of the code with bounds checks. In images
of dynamic size a branch skips the lines of windows that are padding, so that only columns are checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.tiling import has_few_registers, threads_worthwhile, vector_lanes
from relayc.topi.groups import constant_size, iterations
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["MOST_TAPS", "tile_windows"]

MOST_TAPS = 27
"""Most taps of a window, or of lines of it, that are unrolled, so that adjacent columns share loads in registers."""


def tile_windows(
    s: te.Schedule,
    out: te.Tensor,
    accumulator: te.Tensor,
    columns: int,
    target: Target,
    unrolled: int = MOST_TAPS,
    vectors: int = 1,
    *,
    rows: int = 1,
    operations: float | None = None,
    divide: bool = True,
    alone: bool = True,
    narrow: bool = False,
) -> tuple[te.IterVar, te.IterVar, int]:
    """Schedule `out` (N, ..., W, C), and the reduction over a window behind it, in tiles of about `columns` columns.

    With `divide` the columns of a tile divide the width if a divisor is near. Tiles have `rows` lines and up to
    `vectors` vectors of channels. Padding is inlined. Windows, or lines of them, of up to `unrolled` taps are unrolled.
    `operations` is the work per window that decides on threads, by default two per tap. If not `alone`, another stage
    has the loops over lines. Of an image that is one column, as some exporters write signals, the lines are the columns
    of a tile. Tiles at a border share one copy of the code, with all tests, but where lines have two tiles at most, or
    tiles of one line few registers. Images that are `narrow` have many borders, whose tests stay in the loops: copies
    without some of them would not pay.

    Returns the loop over tiles of channels, the loop over the columns of a tile, and the channels of a tile.
    """
    channels = iterations([s[out].op.axis[-1]])
    lanes = vector_lanes(target)
    lanes *= next((n for n in (4, 2) if n <= vectors and channels % (n * lanes) == 0), 1)
    is_column = _is_column(out)
    window = _in_image_order(s[accumulator].op.reduce_axis, is_column)
    taps = iterations(window)
    *line_axes, x = _in_image_order(s[out].op.axis[:-1], is_column)
    channel = s[out].op.axis[-1]
    rows = 1 if is_column else rows
    width, is_open = constant_size([x.extent], default=64), not isinstance(x.extent, int)
    sizes = [_dividing(width, most) for most in range(1, min(width, target.vector_registers - 2) + 1)]
    likely = _dividing(width, columns) if divide else min(columns, width)
    columns = choose("columns", likely, dict.fromkeys((*sizes, likely)))
    note("tiles", "windows", columns=columns, rows=rows, channels=lanes, width=width, taps=taps)
    tail = "guard" if columns == 1 or isinstance(x.extent, int) else "shift"
    x_outer, x_inner = s[out].split(x, factor=columns, tail=tail)
    channel_outer, channel_inner = s[out].split(channel, factor=lanes)
    count, inner = -(-iterations(line_axes) // rows), [x_inner, channel_inner]
    row = line_axes[-1]
    if rows > 1:
        line_axes[-1], tile_row = s[out].split(row, factor=rows)
        s[out].unroll(tile_row)
        inner.insert(0, tile_row)
    vectors = -(-iterations([channel]) // lanes)
    work = constant_size(out.shape) * (2.0 * taps if operations is None else operations)
    part = _vectors_of_a_part(target, count, vectors, min(target.num_cores, threads_worthwhile(work, lanes)))
    if part < vectors and alone:
        block, channel_outer = s[out].split(channel_outer, factor=part)
        line_axes.insert(0, block)
    s[out].reorder(*line_axes, x_outer, channel_outer, *inner)
    few_have_borders = is_open or width > 2 * columns
    # With few registers tiles are narrow, so that many have a border, and those with a copy of their own are faster.
    share_copy = is_open or (few_have_borders and (rows > 1 or not has_few_registers(target)))
    if alone:
        lines = s[out].fuse(*line_axes)
        parallel(s, out, lines, work, lanes)
        if not (narrow or share_copy):
            s[out].pragma(lines, "loop_partition_hint")
        if iterations([row]) % rows:
            s[out].pragma(lines, "last_apart")
    if is_open and rows == 1:  # rows of a tile differ in the lines that are padding
        s[out].pragma(x_outer, "skip_padding")
    if not few_have_borders:
        s[out].unroll(x_outer)
    elif not narrow:
        s[out].pragma(x_outer, "loop_versions" if share_copy else "loop_partition_hint")
        if rows > 1 and width % columns:
            s[out].pragma(x_outer, "last_apart")
    s[out].unroll(x_inner)
    s[out].vectorize(channel_inner)

    s[accumulator].compute_at(s[out], channel_outer)
    *_, tile_row, tile_x = _in_image_order(s[accumulator].op.axis[:-1], is_column)
    tile_channel = s[accumulator].op.axis[-1]
    s[accumulator].reorder(tile_row, *window, tile_x, tile_channel)
    if rows > 1:
        s[accumulator].unroll(tile_row)
    for i in reversed(range(len(window))):
        if iterations(window[i:]) <= unrolled:
            s[accumulator].unroll(window[i])
    s[accumulator].unroll(tile_x)
    s[accumulator].vectorize(tile_channel)
    return channel_outer, x_inner, lanes


def _is_column(out: te.Tensor) -> bool:
    """Are images (N, ..., H, W, C) one column wide, and higher than that?"""
    return len(out.shape) > 3 and out.shape[-2] == 1 and out.shape[-3] != 1


def _in_image_order(axes: Sequence[te.IterVar], is_column: bool) -> list[te.IterVar]:
    """Return `axes` of lines and columns, with the last two swapped where an image is a column."""
    return [*axes[:-2], *reversed(axes[-2:])] if is_column else list(axes)


_EVENLY = 0.85
"""Least ratio of the best achievable load of the busiest thread to its actual load, for a partition to be accepted. Two
cores take three and four of seven lines: splitting lines would be slower."""


def _vectors_of_a_part(target: Target, lines: int, vectors: int, threads: int) -> int:
    """Return the vectors of channels per part, where `threads` share the lines of parts; all if lines balance well.

    The largest parts that balance nearly as well as any are chosen, so that a thread has adjacent lines, which share
    inputs. A part is at least a cache line, to avoid false sharing.
    """
    fewest = max(LINE_BYTES // target.vector_bytes, 1)
    parts = [-(-vectors // n) for n in range(1, max(vectors // fewest, 1) + 1)]

    def busiest(part: int) -> int:
        return math.ceil(lines * math.ceil(vectors / part) / threads) * part

    least = min(map(busiest, parts))
    return next(part for part in parts if least >= _EVENLY * busiest(part))


def _dividing(width: int, most: int) -> int:
    """Return the columns of a tile: the largest divisor of `width` above half of `most`, if there is one."""
    return next((c for c in range(most, most // 2, -1) if width % c == 0), min(width, max(most // 2, 1)))
