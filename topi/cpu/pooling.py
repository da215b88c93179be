"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts one output at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import local_accumulator, parallel
from topi.cpu.injective import vectorize_elements
from topi.cpu.tiling import vector_lanes
from topi.cpu.windows import tile_windows
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
    if len(outer) in anchor.attrs["axes"]:
        s[accumulator].compute_at(s[out], last)
        return s
    group = vectorize_elements(s, out, last, last.extent, lanes)
    s[accumulator].compute_at(s[out], group)
    *data, lane = s[accumulator].op.axis
    s[accumulator].reorder(*data, *s[accumulator].op.reduce_axis, lane)
    s[accumulator].vectorize(lane)
    return s
