"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts by vectors of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import local_accumulator, parallel
from topi.cpu.injective import vectorize_elements
from topi.cpu.tiling import vector_lanes
from topi.cpu.windows import MOST_TAPS, tile_windows
from topi.groups import constant_size, inline_injective
from topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_pool"]

_COLUMNS = 4
"""Of a tile of NHWC images: what neighbours share is little, and windows of a maximum are long code."""


@register_schedule("pool", "cpu")
def schedule_pool(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """A reduction over a window for every output; the last data axis is vectorised when the window is not on it.

    The anchor's attribute "axes" holds the dimensions that the window spans.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    if tuple(anchor.attrs["axes"]) == (1, 2) and len(anchor.axis) == 4 and len(outs) == 1:
        inline_injective(s, outs, keep=[anchor])
        tile_windows(s, out, local_accumulator(s, anchor, out), _COLUMNS, target)
        return s
    if len(anchor.axis) - 1 in anchor.attrs["axes"] and len(outs) == 1:
        _schedule_lines(s, out, anchor, target)
        return s
    inline_injective(s, outs, keep=[anchor, *[op for op in operations_behind(outs) if op.tag == "pad"]])
    for op in operations_behind(outs):
        if op.tag == "pad" and op is not out.op:
            *outer, last = s[op].op.axis
            line = s[op].fuse(*outer)
            parallel(s, op.output(0), line, constant_size(op.output(0).shape) * 4.0, lanes)
            vectorize_elements(s, op.output(0), last, last.extent, lanes)
    accumulator = local_accumulator(s, anchor, out)
    *outer, last = s[out].op.axis
    window = constant_size([axis.extent for axis in anchor.reduce_axis])
    line = s[out].fuse(*outer)
    parallel(s, out, line, constant_size(out.shape) * window * 2.0, lanes)
    group = vectorize_elements(s, out, last, last.extent, lanes)
    s[accumulator].compute_at(s[out], group)
    *data, lane = s[accumulator].op.axis
    s[accumulator].reorder(*data, *s[accumulator].op.reduce_axis, lane)
    s[accumulator].vectorize(lane)
    return s


def _schedule_lines(s: te.Schedule, out: te.Tensor, anchor: te.Operation, target: Target) -> None:
    """Windows that lie along the last axis: vectors of neighbouring windows, whose taps are read with the stride.

    Loop partitioning cuts off the lines, and the vectors of a line, that touch the border.
    """
    inline_injective(s, [out], keep=[anchor])
    accumulator, lanes = local_accumulator(s, anchor, out), vector_lanes(target)
    *outer, last = s[out].op.axis
    taps = constant_size([axis.extent for axis in anchor.reduce_axis])
    group, inner = s[out].split(last, factor=min(2 * lanes, constant_size([last.extent])))
    s[out].vectorize(inner)
    if len(outer) > 1:
        *planes, line = outer
        plane = s[out].fuse(*planes)
        s[out].pragma(line, "loop_partition_hint")
        parallel(s, out, plane, constant_size(out.shape) * taps * 2.0, lanes)
    s[out].pragma(group, "loop_partition_hint")

    s[accumulator].compute_at(s[out], group)
    *data, lane = s[accumulator].op.axis
    window = s[accumulator].op.reduce_axis
    s[accumulator].reorder(*data, *window, lane)
    if taps <= MOST_TAPS:
        for axis in window:
            s[accumulator].unroll(axis)
    s[accumulator].vectorize(lane)
