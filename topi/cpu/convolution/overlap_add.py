"""Overlap-add of windows on CPUs, channels last: the elements of a stride, each by the taps that contribute to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, first_of
from relayc.topi.cpu.common import local_accumulator, parallel
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_overlap_add"]

_UNROLLED = 64
"""Most elements of strides, times the terms of each, that are unrolled: then it is static which taps these are."""
_VECTORS = 4
"""Most vectors of channels that are added together."""


@register_schedule("overlap_add", "cpu")
def schedule_overlap_add(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Threads share the lines of strides; the elements of a stride are unrolled if they are few."""
    s = te.create_schedule([out.op for out in outs])
    out, lanes = outs[0], vector_lanes(target)
    inline_injective(s, outs, keep=[anchor])
    total = local_accumulator(s, anchor, out)
    batch, *spatial, channel = s[out].op.axis
    phases, channels = anchor.attrs["phases"], constant_size([extent_of(channel)])
    group = constant_size(anchor.input_tensors[0].shape[-1:])
    lanes = min(lanes, channels) if group == channels else math.gcd(group, lanes)
    vectors = next((n for n in range(_VECTORS, 0, -1) if group % (n * lanes) == 0), 1)
    splits = [s[out].split(axis, factor=phase.stride) for axis, phase in zip(spatial, phases, strict=True)]
    block, channel = s[out].split(channel, factor=vectors * lanes)
    vector, lane = s[out].split(channel, factor=lanes)
    *lines, stride = [outer for outer, _ in splits]
    *across, along = [inner for _, inner in splits]
    s[out].reorder(batch, *lines, *across, stride, block, along, vector, lane)
    line = s[out].fuse(batch, *lines) if lines else batch
    terms = s[total].op.reduce_axis
    work = 2.0 * constant_size(out.shape) * constant_size([extent_of(axis) for axis in terms])
    parallel(s, out, line, work, lanes)
    s[out].pragma(line, "loop_partition_hint")
    s[out].pragma(stride, "loop_partition_hint")
    size = math.prod(phase.stride * phase.most for phase in phases)
    too_many = Refused(f"{size} elements of a stride times their terms exceed {_UNROLLED}")
    few = first_of("taps", (("unrolled", lambda: True if size <= _UNROLLED else too_many), ("loops", lambda: False)))
    if few:
        for axis in (*across, along):
            s[out].unroll(axis)
    s[out].unroll(vector)
    s[out].vectorize(lane)

    s[total].compute_at(s[out], along)
    *_, channel = s[total].op.axis
    vector, lane = s[total].split(channel, factor=lanes)
    s[total].reorder(*terms, vector, lane)
    if few:
        for axis in terms:
            s[total].unroll(axis)
    s[total].unroll(vector)
    s[total].vectorize(lane)
    return s
