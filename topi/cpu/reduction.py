"""Reductions and row-wise groups (softmax, normalisation) on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import constant_size, inline_injective, parallel
from topi.cpu.injective import element_cost, vectorize_elements
from topi.cpu.tiling import vector_lanes
from topi.registry import Rank, operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_reduce", "schedule_rowwise"]

_ACCUMULATORS = 4
"""Vectors of partial results: enough to hide the latency of an addition."""


def _reduces_last_axis(op: te.ComputeOp) -> bool:
    """Does the innermost reduction axis run along memory? Judged by size against the last data axis."""
    return not op.axis or constant_size([op.axis[-1].dom.extent]) == 1 or op.attrs.get("reduces_last_axis", False)


def vectorize_reduction(s: te.Schedule, tensor: te.Tensor, lanes: int) -> te.Tensor | None:
    """Split the innermost reduction axis into vectors of partial results; returns the tensor of partial results.

    None when the axis is too short, of unknown length or the reduction has several results: it stays scalar then.
    """
    axis = s[tensor].op.reduce_axis[-1]
    extent = axis.dom.extent
    if not isinstance(extent, int) or extent < 2 * lanes or s[tensor].op.num_outputs > 1:
        return None
    factor = _ACCUMULATORS * lanes if extent >= _ACCUMULATORS * lanes else lanes
    _, inner = s[tensor].split(axis, factor=factor)
    partial = s.rfactor(tensor, inner)
    s[partial].set_scope("local")
    lane = s[partial].op.axis[0]
    s[partial].reorder(*s[partial].op.axis[1:], *s[partial].op.reduce_axis, lane)
    s[partial].vectorize(lane)
    return partial


@register_schedule("comm_reduce", "cpu", rank=Rank.REDUCTION)
def schedule_reduce(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """A reduction with an elementwise tail: along memory by vectors of partial results, else by vectors of outputs."""
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    inline_injective(s, outs, keep=[anchor])
    lanes = vector_lanes(target)
    result = anchor.output(0)
    work = constant_size([a.dom.extent for a in (*anchor.axis, *anchor.reduce_axis)]) * 2.0
    axes = list(s[out].op.axis)
    if not axes:
        vectorize_reduction(s, result, lanes)
        return s
    if _reduces_last_axis(anchor):
        row = s[out].fuse(*axes)
        parallel(s, out, row, work, lanes)
        if anchor is not out.op:
            s[result].set_scope("local")
            s[result].compute_at(s[out], row)
        partial = vectorize_reduction(s, result, lanes)
        if partial is not None:
            if anchor is out.op:
                s[partial].compute_at(s[out], row)
            else:
                s[partial].compute_at(s[result], s[result].op.axis[-1])
        return s
    accumulator = s.cache_write(result, "local") if anchor is out.op else result
    if anchor is not out.op:
        s[result].set_scope("local")
    outer = vectorize_elements(s, out, axes[-1], axes[-1].dom.extent, lanes)
    group = s[out].fuse(*axes[:-1], outer) if len(axes) > 1 else outer
    parallel(s, out, group, work, lanes)
    s[accumulator].compute_at(s[out], group)
    *data, last = s[accumulator].op.axis
    s[accumulator].reorder(*data, *s[accumulator].op.reduce_axis, last)
    s[accumulator].vectorize(last)
    return s


@register_schedule(["softmax", "log_softmax", "layer_norm", "rms_norm"], "cpu", rank=Rank.HEAVY)
def schedule_rowwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Reductions along the last axis and elementwise steps between them, one row at a time while it is in cache."""
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    reductions = [op for op in stages if op.reduce_axis]
    shared = [op for op in stages if op.attrs.get("keep_row", False) and op is not out.op]
    inline_injective(s, outs, keep=[*shared, anchor])
    axes = list(s[out].op.axis)
    row = s[out].fuse(*axes[:-1]) if len(axes) > 1 else s[out].split(axes[0], nparts=1)[0]
    parallel(s, out, row, constant_size(out.shape) * element_cost(stages), lanes)
    last = axes[-1] if len(axes) > 1 else s[out].leaf_axes[-1]
    vectorize_elements(s, out, last, axes[-1].dom.extent, lanes)
    rows = [*reductions, *shared, *([anchor] if anchor is not out.op and not anchor.reduce_axis else [])]
    for op in dict.fromkeys(rows):
        if op is out.op:
            continue
        result = op.output(0)
        s[result].compute_at(s[out], row)
        if op.reduce_axis:
            partial = vectorize_reduction(s, result, lanes)
            if partial is not None:
                s[partial].compute_at(s[out], row)
        else:
            vectorize_elements(s, result, s[result].op.axis[-1], op.axis[-1].dom.extent, lanes)
    return s
