"""Instance and group normalisation on CPUs: channels or groups of them, standardised over the other dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel
from topi.cpu.injective import element_cost, vectorize_elements
from topi.cpu.reduction import schedule_across
from topi.cpu.row_statistics import split_at, statistics_at, uses_reduction
from topi.cpu.stagewise import schedule_stagewise
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, extent_of
from topi.nn.norm import group_norm_across
from topi.registry import Rank, operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_channelwise"]


@register_schedule(["instance_norm", "group_norm"], "cpu", rank=Rank.HEAVY)
def schedule_channelwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Channels standardised over the other dimensions: a row is a channel or group where they come first.

    Where channels are the last dimension the statistics are reductions across memory, each a pass of its own; those of
    groups are made of those of channels.
    """
    axis = int(anchor.attrs["axis"])
    if len(outs) > 1 or axis not in (1, len(anchor.axis) - 1):
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([outs[0].op])
    if anchor.tag == "group_norm" and axis != 1:
        s.recompute(anchor.output(0), _group_norm_across(anchor))
        anchor = s.current(anchor.output(0)).op
    lanes, out = vector_lanes(target), s.outputs[0].output(0)
    stages = [op for op in operations_behind([out]) if isinstance(op, te.ComputeOp)]
    before, behind = split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not uses_reduction(op)):
            s[op].compute_inline()
    work = constant_size(out.shape) * element_cost(stages)
    if axis == 1:
        batch, channel, *rest = s[out].op.axis
        inner = [*rest]
        if anchor.tag == "group_norm":
            channel, within = s[out].split(channel, factor=anchor.attrs["group_size"])
            inner.insert(0, within)
        row = s[out].fuse(batch, channel)
        parallel(s, out, row, work, lanes)
        vectorize_elements(s, out, s[out].fuse(*rest), constant_size([extent_of(a) for a in rest]), lanes)
        statistics_at(s, before, out, row, 2, lanes)
        return s
    for op in [op for op in before if uses_reduction(op)]:
        result = op.output(0)
        if op.reduce_axis and not op.attrs.get("reduces_last_axis", False):
            schedule_across(s, result, result, target)
        elif not op.reduce_axis:
            vectorize_elements(s, result, op.axis[-1], extent_of(op.axis[-1]), lanes)
    *lines, last = s[out].op.axis
    parallel(s, out, s[out].fuse(*lines), work, lanes)
    vectorize_elements(s, out, last, extent_of(last), lanes)
    return s


def _group_norm_across(anchor: te.Operation) -> te.Tensor:
    """What `anchor`, a group_norm of channels in the last dimension, computes, by sums of channels."""
    x = next(t for t in anchor.input_tensors if tuple(t.shape) == tuple(anchor.output(0).shape))
    weights = [t for t in anchor.input_tensors if len(t.shape) == 1]
    return group_norm_across(x, weights[0], weights[-1], anchor.attrs["group_size"], anchor.attrs["epsilon"])
