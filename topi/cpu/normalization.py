"""Softmax and normalisations on CPUs: statistics of rows, and elementwise steps with them, in one kernel."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import te
from te.tir import PrimExpr
from te.tir.substitute import substitute
from topi.cpu.common import parallel, parallel_outer
from topi.cpu.injective import element_cost, vectorize_elements
from topi.cpu.prefetch import LINE_BYTES, is_streamed, prefetch_rows
from topi.cpu.reduction import add_up_lines, schedule_across, vectorize_reduction
from topi.cpu.stagewise import schedule_stagewise
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, extent_of, inline_injective
from topi.nn.norm import group_norm_across
from topi.registry import Rank, operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_channelwise", "schedule_lrn", "schedule_rowwise"]

_PAGE_BYTES = 4096
_MOST_NEIGHBOURS = 16
"""Channels in the window of a local response normalisation that is unrolled."""
_ROOTS_AT_ONCE = (4, 2)
"""Vectors of a local response normalisation that are computed together, in the order of preference."""


@register_schedule(["softmax", "layer_norm", "rms_norm", "l2_normalize"], "cpu", rank=Rank.HEAVY)
def schedule_rowwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Statistics of a row and elementwise steps with them, one row at a time while it is in the first-level cache.

    The anchor's attribute "axis" says where rows begin: its dimensions from there on are one row. A softmax or L2 norm
    along one dimension that is not the last has rows across memory.
    """
    if "axis" not in anchor.attrs:
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    first = int(anchor.attrs["axis"])
    if first != len(anchor.axis) - 1 and _reduces_one_axis(anchor):
        return _schedule_strided_rows(s, outs, anchor, target)
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    before, behind = _split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not _uses_reduction(op)):
            s[op].compute_inline()
    axes = list(s[out].op.axis)
    row = s[out].fuse(*axes[:first])
    parallel(s, out, row, constant_size(out.shape) * element_cost(stages), lanes)
    busy = [(out, vectorize_elements(s, out, axes[-1], axes[-1].extent, lanes))]
    busy += _statistics_at(s, before, out, row, first, lanes)
    _prefetch_rows(s, out, busy[-1], constant_size([extent_of(a) for a in axes[first:]]), target)
    return s


def _prefetch_rows(
    s: te.Schedule, out: te.Tensor, busy: tuple[te.Tensor, te.IterVar], length: int, target: Target
) -> None:
    """Ask for the next row of large inputs, and for the place of this row's results, while a row is worked on.

    A line at a time in the loop of most arithmetic, `busy`: memory is idle meanwhile. What takes a pass of its own
    before the results are written can ask for their place too.
    """
    tensor, loop = busy
    prefetch_rows(s, tensor, loop, constant_size(out.shape), length, target)
    if tensor is not out and tuple(tensor.shape) == tuple(out.shape) and is_streamed(out, length, target):
        s[tensor].prefetch_ahead(out, loop, 0)


def _statistics_at(
    s: te.Schedule, before: list[te.ComputeOp], out: te.Tensor, row: te.IterVar, first: int, lanes: int
) -> list[tuple[te.Tensor, te.IterVar]]:
    """Compute what depends on reductions at the loop `row` of `out`; rows have `first` indices.

    Returns the stages of whole rows with their loops over vectors.
    """
    rows: list[tuple[te.Tensor, te.IterVar]] = []
    for op in before:
        if not _uses_reduction(op):
            continue
        result = op.output(0)
        s[result].compute_at(s[out], row)
        if op.reduce_axis:
            for partial in vectorize_reduction(s, result, lanes):
                s[partial].compute_at(s[out], row)
        elif len(op.axis) > first:
            loop = vectorize_elements(s, result, s[result].op.axis[-1], op.axis[-1].extent, lanes)
            rows.append((result, loop))
    return rows


def _split_at(stages: list[te.ComputeOp], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """The stages that the anchor reads, and the anchor with those that read it."""
    needed = {id(op) for op in operations_behind([anchor.output(0)])} - {id(anchor)}
    return [op for op in stages if id(op) in needed], [op for op in stages if id(op) not in needed]


def _reduces_one_axis(anchor: te.Operation) -> bool:
    """Are the statistics behind `anchor` of one dimension?"""
    behind = [op for op in operations_behind([anchor.output(0)]) if isinstance(op, te.ComputeOp)]
    return all(len(op.reduce_axis) <= 1 for op in behind)


def _uses_reduction(op: te.Operation) -> bool:
    """Is this a reduction, or computed from the result of one?"""
    return any(isinstance(o, te.ComputeOp) and o.reduce_axis for o in operations_behind([op.output(0)]))


def _schedule_strided_rows(s: te.Schedule, outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Rows across memory: neighbouring rows together, as many as keep a block in the second-level cache.

    Every stage passes over the lines of the block, vectors of neighbouring rows innermost.
    """
    inline_injective(s, outs, keep=[anchor, *[op for op in operations_behind(outs) if _uses_reduction(op)]])
    out, lanes = outs[0], vector_lanes(target)
    axis = int(anchor.attrs["axis"])
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp) and _uses_reduction(op)]
    before, behind = _split_at(stages, anchor)
    for op in behind:
        if op is not out.op:
            s[op].compute_inline()
    *outer, last = s[out].op.axis
    block = _strip_columns(out, axis, target)
    part, within = s[out].split(last, factor=block, tail="shift" if isinstance(extent_of(last), int) else "guard")
    s[out].reorder(*outer[:axis], *outer[axis + 1 :], part, outer[axis], within)
    group = s[out].fuse(*outer[:axis], *outer[axis + 1 :], part)
    parallel(s, out, group, constant_size(out.shape) * element_cost(stages), lanes)
    vectorize_elements(s, out, within, block, lanes)
    for op in before:
        result = op.output(0)
        s[result].compute_at(s[out], group)
        if op.reduce_axis:
            add_up_lines(s, result, lanes)
        else:
            busy = vectorize_elements(s, result, op.axis[-1], block, lanes)
            _prefetch_rows(s, out, (result, busy), block, target)
    return s


def _strip_columns(out: te.Tensor, axis: int, target: Target) -> int:
    """Neighbouring rows along `axis`, across memory, that are worked on together: as evenly as they can be divided.

    Two cache lines of each where what is read, kept, written and fetched ahead leaves half of the first-level cache
    free, an eighth of the second-level cache otherwise. Elements of a row that are whole pages apart share the sets of
    caches, which few lines fit in: there the lines are long, so that they are done with quickly.
    """
    length, columns = constant_size(out.shape[axis : axis + 1]), constant_size(out.shape[-1:])
    nbytes, caches = max(out.dtype.nbytes, 4), target.cache_bytes
    line = LINE_BYTES // nbytes
    apart = constant_size(out.shape[axis + 1 :]) * nbytes
    if apart % _PAGE_BYTES == 0:
        most = max(caches.l2 // 8 // (length * nbytes), 8 * line)
    elif 4 * length * 2 * LINE_BYTES <= caches.l1 // 2:
        most = 2 * line
    else:
        most = max(caches.l2 // 8 // (length * nbytes), 4 * line)
    parts = -(-columns // most)
    return min(-(-columns // parts // line) * line, columns)


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
    before, behind = _split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not _uses_reduction(op)):
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
        _statistics_at(s, before, out, row, 2, lanes)
        return s
    for op in [op for op in before if _uses_reduction(op)]:
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


@register_schedule("lrn", "cpu", rank=Rank.HEAVY)
def schedule_lrn(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """The sum over neighbouring channels in registers, in one pass over memory; borders are tested for at the ends."""
    out, axis = outs[0], int(anchor.attrs["axis"])
    sums = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp) and op.reduce_axis]
    window = constant_size([extent_of(a) for a in sums[0].reduce_axis])
    if len(outs) > 1 or len(sums) != 1 or window > _MOST_NEIGHBOURS:
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([out.op])
    total = sums[0].output(0)
    s.recompute(total, _as_one_expression(sums[0], window))
    s[s.current(total)].compute_inline()
    out = s.outputs[0].output(0)
    inline_injective(s, [out])
    if s[anchor].op is not out.op:
        s[anchor].compute_inline()
    work = constant_size(out.shape) * element_cost(operations_behind([out]))
    if axis == len(out.shape) - 1:
        _lrn_along_channels(s, out, work, target)
    else:
        _lrn_across_channels(s, out, axis, window, work, target)
    return s


def _as_one_expression(op: te.ComputeOp, window: int) -> te.Tensor:
    """A sum over a short `window`, its terms written one by one."""
    (term,), (k,) = op.body[0].source, op.reduce_axis  # type: ignore[attr-defined]

    def total(*i: Any) -> PrimExpr:
        at = {axis.var: v for axis, v in zip(op.axis, i, strict=True)}
        terms: list[PrimExpr] = [substitute(term, {**at, k.var: te.const(n, k.var.dtype)}) for n in range(window)]
        return reduce(lambda a, b: a + b, terms)

    return te.compute(tuple([extent_of(a) for a in op.axis]), total, name=op.name)


def _lrn_along_channels(s: te.Schedule, out: te.Tensor, work: float, target: Target) -> None:
    """Lines of channels, as vectors: several at once hide that a root takes long."""
    *outer, channel = s[out].op.axis
    size, lanes = extent_of(channel), vector_lanes(target)
    dividing = [n for n in _ROOTS_AT_ONCE if isinstance(size, int) and size % (n * lanes) == 0]
    factor = dividing[0] * lanes if dividing else lanes
    group, within = s[out].split(channel, factor=factor)
    parallel_outer(s, out, outer, work, target)
    if isinstance(size, int) and size <= 2 * factor:
        s[out].unroll(group)
    else:
        s[out].pragma(group, "loop_partition_hint")
    s[out].vectorize(within)


def _lrn_across_channels(
    s: te.Schedule, out: te.Tensor, axis: int, window: int, work: float, target: Target
) -> None:
    """Strips of planes, long enough to be streamed, a window of channels of which stays in the second-level cache."""
    lanes, nbytes = vector_lanes(target), max(out.dtype.nbytes, 4)
    axes = list(s[out].op.axis)
    sizes = [extent_of(a) for a in axes[axis + 1 :]]
    size = constant_size(sizes)
    fitting = target.cache_bytes.l2 // 4 // ((window + 2) * nbytes)
    share = -(-size * constant_size([extent_of(a) for a in axes[:axis]]) // target.num_cores)
    parts, step = -(-size // max(min(fitting, share), 2 * lanes)), _ROOTS_AT_ONCE[0] * lanes
    strip, outer = s[out].fuse(*axes[axis + 1 :]), axes[:axis]
    length: te.Dim = next((d for d in sizes if not isinstance(d, int)), size)
    if parts > 1 and isinstance(length, int):
        length = -(-size // parts // step) * step if size >= step else -(-size // lanes) * lanes
        part, strip = s[out].split(strip, factor=length, tail="shift")
        outer = [*outer, part]
    s[out].reorder(*outer, axes[axis], strip)
    s[out].pragma(axes[axis], "loop_partition_hint")
    if isinstance(length, int) and length >= step:
        _, inner = s[out].split(strip, factor=step, tail="shift")
        s[out].vectorize(inner)
    else:
        vectorize_elements(s, out, strip, length, lanes)
    if outer:
        parallel_outer(s, out, outer, work, target)
