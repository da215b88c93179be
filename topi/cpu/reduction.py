"""Reductions and row-wise groups (softmax, normalisation) on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel
from topi.cpu.injective import element_cost, vectorize_elements
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, inline_injective
from topi.registry import Rank, operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_reduce", "schedule_rowwise"]

_ACCUMULATORS = 4
"""Vectors of partial results: enough to hide the latency of an addition."""


def _reduces_last_axis(op: te.Operation) -> bool:
    """Does the innermost reduction axis run along memory? Judged by size against the last data axis."""
    return not op.axis or constant_size([op.axis[-1].extent]) == 1 or op.attrs.get("reduces_last_axis", False)


def vectorize_reduction(s: te.Schedule, tensor: te.Tensor, lanes: int) -> te.Tensor | None:
    """Split the innermost reduction axis into vectors of partial results; returns the tensor of partial results.

    Axes that lie next to each other in memory ("reduces_trailing_axes") are taken as one.

    None when the axis is too short, of unknown length or the reduction has several results: it stays scalar then.
    """
    op = s[tensor].op
    axis, extent = op.reduce_axis[-1], op.reduce_axis[-1].extent
    sizes = [a.extent for a in op.reduce_axis]
    if len(sizes) > 1 and op.attrs.get("reduces_trailing_axes", False) and all(isinstance(d, int) for d in sizes):
        axis, extent = s[tensor].fuse(*op.reduce_axis), constant_size(sizes)
    if not isinstance(extent, int) or extent < 2 * lanes or op.num_outputs > 1:
        return None
    factor = _ACCUMULATORS * lanes if extent >= _ACCUMULATORS * lanes else lanes
    _, inner = s[tensor].split(axis, factor=factor)
    partial = s.rfactor(tensor, inner)
    assert isinstance(partial, te.Tensor)
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
    work = constant_size([a.extent for a in (*anchor.axis, *anchor.reduce_axis)]) * 2.0
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
    outer = vectorize_elements(s, out, axes[-1], axes[-1].extent, lanes)
    group = s[out].fuse(*axes[:-1], outer) if len(axes) > 1 else outer
    parallel(s, out, group, work, lanes)
    s[accumulator].compute_at(s[out], group)
    *data, last = s[accumulator].op.axis
    s[accumulator].reorder(*data, *s[accumulator].op.reduce_axis, last)
    s[accumulator].vectorize(last)
    return s


@register_schedule(["softmax", "layer_norm", "rms_norm"], "cpu", rank=Rank.HEAVY)
def schedule_rowwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Statistics of a row and elementwise steps with them, one row at a time while it is in the first-level cache.

    The anchor's attribute "axis" says where rows begin: its dimensions from there on are one row.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    first = int(anchor.attrs["axis"])
    if anchor.tag == "softmax" and first != len(anchor.axis) - 1:
        return _schedule_strided_rows(s, outs, anchor, lanes)
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    before, behind = _split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not _uses_reduction(op)):
            s[op].compute_inline()
    axes = list(s[out].op.axis)
    row = s[out].fuse(*axes[:first])
    parallel(s, out, row, constant_size(out.shape) * element_cost(stages), lanes)
    vectorize_elements(s, out, axes[-1], axes[-1].extent, lanes)
    for op in before:
        if not _uses_reduction(op):
            continue
        result = op.output(0)
        s[result].compute_at(s[out], row)
        if op.reduce_axis:
            partial = vectorize_reduction(s, result, lanes)
            if partial is not None:
                s[partial].compute_at(s[out], row)
        elif len(op.axis) > first:
            vectorize_elements(s, result, s[result].op.axis[-1], op.axis[-1].extent, lanes)
    return s


def _split_at(stages: list[te.ComputeOp], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """The stages that the anchor reads, and the anchor with those that read it."""
    needed = {id(op) for op in operations_behind([anchor.output(0)])} - {id(anchor)}
    return [op for op in stages if id(op) in needed], [op for op in stages if id(op) not in needed]


def _uses_reduction(op: te.Operation) -> bool:
    """Is this a reduction, or computed from the result of one?"""
    return any(isinstance(o, te.ComputeOp) and o.reduce_axis for o in operations_behind([op.output(0)]))


def _schedule_strided_rows(s: te.Schedule, outs: list[te.Tensor], anchor: te.Operation, lanes: int) -> te.Schedule:
    """Rows across memory: each stage by itself, vectors of neighbouring rows."""
    inline_injective(s, outs, keep=[anchor])
    for stage in s.stages:
        op = stage.op
        if not isinstance(op, te.ComputeOp) or stage.attach == "inline" or not op.axis:
            continue
        result, last = op.output(0), op.axis[-1]
        groups = vectorize_elements(s, result, last, last.extent, lanes)
        if op.reduce_axis:
            leaves = s[result].leaf_iter_vars
            s[result].reorder(*op.reduce_axis, leaves[leaves.index(groups) + 1])
    return s
