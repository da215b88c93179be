"""Depthwise convolutions on CPUs: NHWC data, weights (KH, KW, C, 1) or (KH, KW, 1, C), vectors of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import local_accumulator, parallel
from topi.cpu.tiling import largest_share, vector_lanes
from topi.groups import constant_size, inline_injective
from topi.registry import register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_depthwise_conv2d_nhwc"]


@register_schedule("depthwise_conv2d_nhwc", "cpu")
def schedule_depthwise_conv2d_nhwc(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[n, y, x, c] = sum over ky, kx of data[n, y*s + ky, x*s + kx, c] * W[ky, kx, c]: vectors of channels.

    The window is unrolled, so that neighbouring output columns share the inputs they have in common in registers. The
    border is never stored: the lines and columns it touches run a copy of the code with tests.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    inline_injective(s, outs, keep=[anchor])
    window = constant_size([axis.extent for axis in anchor.reduce_axis])
    accumulator = local_accumulator(s, anchor, out)

    n, y, x, channel = s[out].op.axis
    width = constant_size([x.extent], default=64)
    columns = _columns(target, width)
    x_outer, x_inner = s[out].split(x, factor=columns)
    channel_outer, channel_inner = s[out].split(channel, factor=lanes)
    blocks = _channel_blocks(target, constant_size([n.extent, y.extent]), -(-constant_size([channel.extent]) // lanes))
    shared: list[te.IterVar] = []
    if blocks > 1:
        block, channel_outer = s[out].split(channel_outer, nparts=blocks)
        shared = [block]
    s[out].reorder(*shared, n, y, x_outer, channel_outer, x_inner, channel_inner)
    lines = s[out].fuse(n, y)
    parallel(s, out, shared[0] if shared else lines, 2.0 * constant_size(out.shape) * window, lanes)
    s[out].pragma(lines, "loop_partition_hint")
    if width > 2 * columns:
        s[out].pragma(x_outer, "loop_partition_hint")
    else:  # every tile has a border
        s[out].unroll(x_outer)
    s[out].unroll(x_inner)
    s[out].vectorize(channel_inner)

    s[accumulator].compute_at(s[out], channel_outer)
    _, _, tile_x, tile_channel = s[accumulator].op.axis
    ky, kx = s[accumulator].op.reduce_axis
    s[accumulator].reorder(ky, kx, tile_x, tile_channel)
    for axis in (ky, kx) if window <= 25 else (kx,):
        s[accumulator].unroll(axis)
    s[accumulator].unroll(tile_x)
    s[accumulator].vectorize(tile_channel)
    return s


def _channel_blocks(target: Target, lines: int, vectors: int) -> int:
    """Parts of the channels that are shared between threads where there are too few lines for that; else 1.

    A part is of two vectors at least, so that threads seldom write the same cache line.
    """
    cores = target.num_cores
    divisors = [d for d in range(1, vectors // 2 + 1) if vectors % d == 0]
    blocks = min(divisors, key=lambda d: largest_share(d, cores), default=1)
    return blocks if largest_share(blocks, cores) < 0.8 * largest_share(lines, cores) else 1


def _columns(target: Target, width: int) -> int:
    """Output columns of a register tile of one vector each; a number that divides the width where there is one."""
    most = target.vector_registers // 2
    return next((c for c in range(most, 3, -1) if width % c == 0), min(width, 4))
