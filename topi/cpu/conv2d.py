"""Convolutions on CPUs: direct, on NHWC data, a register tile of output pixels x channels, no im2col.

Weights are packed [OC/NR][KH][KW][IC][NR]; with groups a panel is one group, and tiles stay within it. Padding is a
copy of the input with a border, made once per kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import local_accumulator, parallel
from topi.cpu.matmul import tile_product
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, inline_injective
from topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_conv2d_nhwc_packed", "schedule_depthwise_conv2d_nhwc"]


def _pads(outs: list[te.Tensor], anchor: te.Operation) -> list[te.Operation]:
    """The pad stages that feed the anchor directly."""
    feeding = {id(t.op) for t in anchor.input_tensors}
    return [op for op in operations_behind(outs) if op.tag == "pad" and id(op) in feeding]


def _schedule_pad(s: te.Schedule, pad: te.Operation, lanes: int) -> None:
    """The bordered copy: lines in parallel, channels vectorised; with few channels whole lines are copied."""
    result = pad.output(0)
    n, h, w, c = s[result].op.axis
    line = s[result].fuse(n, h)
    parallel(s, result, line, constant_size(result.shape) * 4.0, lanes)
    if isinstance(c.extent, int) and c.extent >= lanes:
        _, c_inner = s[result].split(c, factor=lanes)
        s[result].vectorize(c_inner)
    else:
        for axis in (line, w):
            s[result].pragma(axis, "loop_partition_hint")


@register_schedule("conv2d_nhwc_packed", "cpu")
def schedule_conv2d_nhwc_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[p, o] = sum over ky, kx, i of data[n, y*s + ky, x*s + kx, i] * W[o // NR, ky, kx, i, o % NR], p = (n, y, x).

    A tile's pixels may lie on two lines: each has an address of its own, worked out once for the whole reduction.
    """
    s = te.create_schedule([out.op for out in outs])
    pads = _pads(outs, anchor)
    inline_injective(s, outs, keep=[anchor, *pads])
    for pad in pads:
        _schedule_pad(s, pad, vector_lanes(target))
    tile_product(s, outs[0], anchor, target)
    return s


@register_schedule("depthwise_conv2d_nhwc", "cpu")
def schedule_depthwise_conv2d_nhwc(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[n, y, x, c] = sum over ky, kx of data[n, y*s + ky, x*s + kx, c] * W[ky, kx, c]: vectors of channels.

    The window is unrolled, so that neighbouring output columns share the inputs they have in common in registers.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    pads = _pads(outs, anchor)
    inline_injective(s, outs, keep=[anchor, *pads])
    for pad in pads:
        _schedule_pad(s, pad, lanes)
    window = constant_size([axis.extent for axis in anchor.reduce_axis])
    accumulator = local_accumulator(s, anchor, out)

    n, y, x, channel = s[out].op.axis
    width = constant_size([x.extent], default=64)
    columns = min(width, 4)
    x_outer, x_inner = s[out].split(x, factor=columns, tail="shift")
    channel_outer, channel_inner = s[out].split(channel, factor=lanes)
    s[out].reorder(n, y, channel_outer, x_outer, x_inner, channel_inner)
    lines = s[out].fuse(n, y)
    parallel(s, out, lines, 2.0 * constant_size(out.shape) * window, lanes)
    s[out].unroll(x_inner)
    s[out].vectorize(channel_inner)

    s[accumulator].compute_at(s[out], x_outer)
    _, _, tile_x, tile_channel = s[accumulator].op.axis
    ky, kx = s[accumulator].op.reduce_axis
    s[accumulator].reorder(ky, kx, tile_x, tile_channel)
    for axis in (ky, kx) if window <= 25 else (kx,):
        s[accumulator].unroll(axis)
    s[accumulator].unroll(tile_x)
    s[accumulator].vectorize(tile_channel)
    return s
