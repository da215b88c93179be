"""Convolutions of narrow groups on CPUs: channels last, vectors of neighbouring channels, whatever their groups.

Taps along a line share their loads: a step is all of them, of one input. Padding is a copy of the input with a border,
made once per kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cpu.common import local_accumulator, operands, parallel_outer
from relayc.topi.cpu.convolution.group_plan import GroupedWindows, GroupTile, plan_group_tile
from relayc.topi.cpu.convolution.windows import feeding_pads, schedule_pad
from relayc.topi.cpu.elements import functions_behind
from relayc.topi.cpu.tiling import LINE_ELEMENTS, SET_ELEMENTS, at_precision_of, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_conv_across_groups"]

_CHAINS = 4
"""Vectors of mathematical functions that are computed together."""


def _windows(anchor: te.Operation) -> GroupedWindows:
    *taps, line_taps, inputs = [constant_size([extent_of(axis)]) for axis in anchor.reduce_axis]
    _, *lines, columns, _ = anchor.output(0).shape
    attrs = anchor.attrs
    return GroupedWindows(
        constant_size(lines), constant_size([columns]), constant_size(taps), line_taps, attrs["strides"][-1],
        attrs["dilation"][-1], attrs["groups"], inputs, attrs["outputs"], attrs["has_border"],
        any_width=not isinstance(columns, int),
    )  # fmt: skip


@register_schedule(["conv1d_nwc_across_groups", "conv2d_nhwc_across_groups", "conv3d_ndhwc_across_groups"], "cpu")
def schedule_conv_across_groups(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[n, y, x, c] = sum over ky, i, kx of data[n, y*s + ky, x*s + kx, i of c's group] * W[c // L, ky, kx, i, c % L].

    Weights that stay in the L2 cache are streamed for each line, others are read once.
    """
    target, windows = at_precision_of(target, anchor.output(0).dtype), _windows(anchor)
    tile = plan_group_tile(target, windows)
    note("tiles", "vectors across groups", tile)
    s = _tiled(outs, anchor, target, windows, tile)
    if windows.any_width:
        s.specialize_small(_tiled(outs, anchor, target, windows, replace(tile, columns=1)))
    return s


def _tiled(
    outs: list[te.Tensor], anchor: te.Operation, target: Target, windows: GroupedWindows, tile: GroupTile
) -> te.Schedule:
    """The schedule in tiles of `tile`, for lines of as many columns at least."""
    s = te.create_schedule([out.op for out in outs])
    out, lanes = outs[0], vector_lanes(target)
    pads = feeding_pads(outs, anchor)
    inline_injective(s, outs, keep=[anchor, *pads])
    for pad in pads:
        schedule_pad(s, pad, target)
        s[pad].storage_align(s[pad].op.axis[-2], SET_ELEMENTS, LINE_ELEMENTS)
    result = local_accumulator(s, anchor, out)
    *lines, x, channel = s[out].op.axis
    tiles, pixel = s[out].split(x, factor=tile.columns, tail="shift")
    panels, channel = s[out].split(channel, factor=lanes * tile.vectors)
    vector, lane = s[out].split(channel, factor=lanes)
    weights = operands(anchor)[1]
    stay = constant_size(weights.shape) * weights.dtype.nbytes <= target.cache_bytes.l2 // 2
    order = [*lines, tiles, panels] if stay else [panels, *lines, tiles]
    s[out].reorder(*order, pixel, vector, lane)
    work = 2.0 * constant_size(out.shape) * constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    *_, inner = parallel_outer(s, out, order, work, target)
    if functions_behind(out, anchor):
        some = max(n for n in range(1, max(_CHAINS // tile.vectors, 1) + 1) if tile.columns % n == 0)
        _, pixel = s[out].split(pixel, factor=some)
    s[out].unroll(pixel)
    s[out].unroll(vector)
    s[out].vectorize(lane)
    s[result].compute_at(s[out], inner)
    _sum_tile(s, result, windows, lanes)
    return s


def _sum_tile(s: te.Schedule, result: te.Tensor, windows: GroupedWindows, lanes: int) -> None:
    """The sums of a tile: each loaded value is used for all taps of a line before the next one."""
    *_, pixel, channel = s[result].op.axis
    *taps, line_tap, inputs = s[result].op.reduce_axis
    vector, lane = s[result].split(channel, factor=lanes)
    if windows.is_unrolled:
        s[result].reorder(*taps, line_tap, pixel, inputs, vector, lane)
        s[result].unroll(inputs)
    elif windows.shares_taps:
        s[result].reorder(*taps, inputs, pixel, line_tap, vector, lane)
        s[result].unroll(line_tap)
    else:
        s[result].reorder(*taps, line_tap, inputs, pixel, vector, lane)
    s[result].unroll(pixel)
    s[result].unroll(vector)
    s[result].vectorize(lane)
