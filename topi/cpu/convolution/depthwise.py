"""Depthwise convolutions on CPUs: channels last, vectors of channels. Weights are (..., C, 1) or (..., 1, C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import local_accumulator, parallel
from relayc.topi.cpu.elements import functions_behind
from relayc.topi.cpu.pooling.windows import tile_windows
from relayc.topi.cpu.products.store_order import StoreOrder, transpose_line
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_depthwise_conv"]


@register_schedule(["depthwise_conv1d_nwc", "depthwise_conv2d_nhwc", "depthwise_conv3d_ndhwc"], "cpu")
def schedule_depthwise_conv(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[n, y, x, c] = sum over ky, kx of data[n, y*s + ky, x*s + kx, c] * W[ky, kx, c]; with ranks 1 to 3.

    Half of the registers hold results: what the other half loads is shared between them.
    """
    functions, columns = functions_behind(outs[0], anchor), target.vector_registers // 2
    if functions:  # their constants take registers, few for exp
        columns = columns - 1 if functions <= _OF_FEW_CONSTANTS else columns // 2
    if isinstance(extent_of(anchor.axis[-2]), int):
        return _tiled(outs, anchor, target, columns, divide=not functions)
    s = _tiled(outs, anchor, target, min(columns, _COLUMNS_OF_ANY_WIDTH), divide=False)
    s.specialize_small(_tiled(outs, anchor, target, 1, divide=False, narrow=True))
    return s


def _tiled(
    outs: list[te.Tensor], anchor: te.Operation, target: Target, columns: int, *, divide: bool, narrow: bool = False
) -> te.Schedule:
    """The schedule in tiles of `columns` columns, or of a divisor of the width near it; see `tile_windows`."""
    s = te.create_schedule([out.op for out in outs])
    order = StoreOrder.of(outs[0])
    inline_injective(s, outs, keep=[anchor, *order.kept])
    result = order.source if order.is_transposed else outs[0]
    accumulator = local_accumulator(s, anchor, result)
    if order.is_transposed:
        _transpose_lines(s, outs[0], result, constant_size([extent_of(axis) for axis in anchor.reduce_axis]), target)
    result = s[result].op.output(0)
    alone = not order.is_transposed
    tile_windows(s, result, accumulator, columns, target, _UNROLLED, divide=divide, alone=alone,
                 narrow=narrow)  # fmt: skip
    return s


def _transpose_lines(s: te.Schedule, out: te.Tensor, source: te.Tensor, taps: int, target: Target) -> None:
    """Transpose `source` (N, H, W, C) into `out` (N, C, H, W), by lines of blocks of channels.

    A line of a block fills at most half of the L1 cache.
    """
    source, lanes = s[source].op.output(0), vector_lanes(target)
    n, c, y, x = s[out].op.axis
    width, vectors = constant_size([extent_of(x)]), constant_size([extent_of(c)]) // lanes
    most = max(target.cache_bytes.l1 // (2 * out.dtype.nbytes * width * lanes), 1)
    together = next(v for v in range(min(most, vectors), 0, -1) if vectors % v == 0)
    block, c = s[out].split(c, factor=together * lanes)
    s[out].reorder(n, block, y, c, x)
    line = s[out].fuse(n, block, y)
    parallel(s, out, line, 2.0 * taps * constant_size(out.shape), lanes)
    s[out].pragma(line, "loop_partition_hint")
    transpose_line(s, out, source, line, c, x, target)


_OF_FEW_CONSTANTS = {"exp", "sigmoid"}
"""Functions with few constants, for tiles of seven columns in 16 registers; with eight columns they take a third
longer. The error function is for tiles of four, with five to eight it takes a quarter longer."""


_UNROLLED = 16
"""Most taps that are unrolled: all of 5 x 5 would be a tenth faster, and take over twice as long to compile."""

_COLUMNS_OF_ANY_WIDTH = 7
"""Most columns of a tile where the width is known at run time only: maps of 7, 14, 28 and 56 have whole tiles. Six
leave the multiply-adds waiting for each other: 1.2 times as long. With eight a map of seven has a tile for each pixel.
"""
