"""Instance and group normalisation on CPUs: channels or groups of them, standardised over the other dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel, parallel_outer
from topi.cpu.injective import element_cost, vectorize_elements
from topi.cpu.moments import part_sizes, schedule_moments
from topi.cpu.reduction import schedule_across
from topi.cpu.row_statistics import split_at, statistics_at, uses_reduction
from topi.cpu.stagewise import schedule_stagewise
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, extent_of
from topi.moments import Moments
from topi.nn.norm import group_norm_across
from topi.registry import Rank, operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_channelwise"]


@register_schedule(["instance_norm", "group_norm"], "cpu", rank=Rank.HEAVY)
def schedule_channelwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Channels standardised over the other dimensions: a row is a channel or group where they come first.

    Where channels are the last dimension their moments are found in one pass over the image, those of groups are made
    of those of channels, and a second pass standardises.
    """
    axis = int(anchor.attrs["axis"])
    if len(outs) > 1 or axis not in (1, len(anchor.axis) - 1):
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([outs[0].op])
    return (_schedule_rows if axis == 1 else _schedule_last)(s, anchor, target)


def _schedule_rows(s: te.Schedule, anchor: te.Operation, target: Target) -> te.Schedule:
    lanes, out = vector_lanes(target), s.outputs[0].output(0)
    before = _inline_others(s, out, anchor)
    batch, channel, *rest = s[out].op.axis
    inner = [*rest]
    if anchor.tag == "group_norm":
        channel, within = s[out].split(channel, factor=anchor.attrs["group_size"])
        inner.insert(0, within)
    row = s[out].fuse(batch, channel)
    parallel(s, out, row, _work(out), lanes)
    vectorize_elements(s, out, s[out].fuse(*rest), constant_size([extent_of(a) for a in rest]), lanes)
    statistics_at(s, before, out, row, 2, lanes)
    return s


def _schedule_last(s: te.Schedule, anchor: te.Operation, target: Target) -> te.Schedule:
    x = next(t for t in anchor.input_tensors if tuple(t.shape) == tuple(anchor.output(0).shape))
    parameters = [t for t in anchor.input_tensors if len(t.shape) == 1]  # one tensor may serve as both
    gamma, beta = parameters[0], parameters[-1]
    sizes = part_sizes(x.shape, x.dtype.nbytes, range(1, x.ndim - 1), target)
    moments = Moments(x, sizes, "group_norm")
    group_size = anchor.attrs.get("group_size", 1)
    s.recompute(anchor.output(0), group_norm_across(moments, gamma, beta, group_size, anchor.attrs["epsilon"]))
    out = s.outputs[0].output(0)
    before = _inline_others(s, out, s.current(anchor.output(0)).op)
    schedule_moments(s, moments, target)
    lanes = vector_lanes(target)
    for op in before:
        result = op.output(0)
        if s[op].attach != "root" or not uses_reduction(op) or op.num_outputs > 1:
            continue
        if op.reduce_axis and not op.attrs.get("reduces_last_axis", False):
            schedule_across(s, result, result, target)
        elif not op.reduce_axis:
            vectorize_elements(s, result, op.axis[-1], extent_of(op.axis[-1]), lanes)
    *lines, last = s[out].op.axis
    vectors = vectorize_elements(s, out, last, extent_of(last), lanes)
    parallel_outer(s, out, [*lines, vectors], _work(out), target)
    return s


def _inline_others(s: te.Schedule, out: te.Tensor, anchor: te.Operation) -> list[te.ComputeOp]:
    """Inline what comes behind the anchor, and what comes before its statistics. Returns the stages before it."""
    stages = [op for op in operations_behind([out]) if isinstance(op, te.ComputeOp)]
    before, behind = split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not uses_reduction(op)):
            s[op].compute_inline()
    return before


def _work(out: te.Tensor) -> float:
    return constant_size(out.shape) * element_cost(operations_behind([out]))
