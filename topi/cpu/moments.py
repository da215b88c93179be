"""Moments by parts on CPUs: the first pass over a part brings it into the cache for the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel, parallel_outer
from topi.cpu.injective import vectorize_elements
from topi.cpu.reduction import (
    add_up_lines,
    pass_across,
    pass_along,
    schedule_across,
    schedule_along,
    vectorize_reduction,
)
from topi.cpu.row_statistics import inline_others, uses_reduction, work_behind
from topi.cpu.stagewise import schedule_stagewise
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, extent_of, inline_injective, likely_extent
from topi.moments import Moments
from topi.registry import Rank, register_schedule
from topi.tag import VARIANCE
from topi.tuning import choose
from topi.utils import num_elements, same_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backend.target import Target
    from te.tir import Dim

__all__ = ["exceeds_caches", "part_by_part", "part_sizes", "schedule_by_moments", "schedule_variance"]

_COLUMNS = 1024
"""Elements of a line that partial results are kept of at once, where lines are added up."""
_SHARE_OF_LAST = 2
"""Rows up to such a part of the last cache are found there again."""
_LIKELY = 64
"""What a length that is known at run time is taken to be."""


def part_sizes(
    shape: Sequence[Dim], nbytes: int, reduced: Sequence[int], target: Target, share: int | None = None
) -> dict[int, Dim]:
    """How many elements along each dimension of `reduced` make a part of a tensor of `shape`, elements of `nbytes`.

    Whole dimensions from the last one on, a part of the next, one element of those before: what one of `share` parts of
    the second-level cache holds, a quarter of it, or half where lines lie across memory. Smaller ones are slower, down
    to two thirds for a first-level cache, where nothing is fetched ahead.
    """
    last = len(shape) - 1
    share = (4 if last in reduced else 2) if share is None else share
    room = choose("part", target.cache_bytes.l2 // share, [target.cache_bytes.l2 // n for n in (2, 4, 8, 16)]) // nbytes
    if last not in reduced:
        room //= min(likely_extent(shape[last], _COLUMNS), _COLUMNS)
    sizes: dict[int, Dim] = {}
    for axis in sorted(reduced, reverse=True):
        extent = shape[axis]
        length = max(likely_extent(extent, _LIKELY), 1)
        if length <= max(room, 1) or (not sizes and not isinstance(extent, int)):
            sizes[axis] = extent
        else:
            sizes[axis] = _even_part(length, max(room, 1)) if isinstance(extent, int) else max(room, 1)
        room = room // length
    return dict(sorted(sizes.items()))


def _even_part(length: int, most: int) -> int:
    """The largest divisor of a length up to `most`, unless it is much less than that."""
    divisor = next(n for n in range(most, 0, -1) if length % n == 0)
    return divisor if 4 * divisor >= most else most


def _even_block(columns: int, lanes: int) -> int:
    """Whole vectors of a line that is longer than what partial results are kept of, as evenly as it can be divided."""
    return -(-columns // -(-columns // _COLUMNS) // (2 * lanes)) * 2 * lanes


def part_by_part(
    s: te.Schedule, parts: te.Tensor, stages: Sequence[te.Tensor], block: int | None, elements: int, target: Target
) -> te.IterVar:
    """Compute `stages`, of which `parts` is made, for each part of `elements` in all; returns the loop over parts.

    `block`: so many columns are taken together, where lines lie across memory.
    """
    lanes = vector_lanes(target)
    *outer, last = s[parts].op.axis
    if block is not None:
        tail = "shift" if isinstance(extent_of(last), int) else "guard"
        last, within = s[parts].split(last, factor=block, tail=tail)
        vectorize_elements(s, parts, within, block, lanes)
    part = s[parts].fuse(*outer, last)
    parallel(s, parts, part, elements * 4.0, lanes)
    for stage in stages:
        s[stage].set_scope("local")
        s[stage].compute_at(s[parts], part)
    return part


def _schedule_moments(s: te.Schedule, moments: Moments, target: Target) -> None:
    """Every part by itself: its sum, its mean, then the distances from that."""
    parts, lanes = moments.sums, vector_lanes(target)
    across = moments.x.ndim - 1 not in moments.sizes
    columns = constant_size([extent_of(s[parts].op.axis[-1])])
    block = columns if columns <= _COLUMNS else _even_block(columns, lanes)
    stages = (moments.total, moments.mean, moments.distance)
    part = part_by_part(s, parts, stages, block if across else None, constant_size(moments.x.shape), target)
    if not across:
        for stage in (moments.total, moments.distance):
            for partial in vectorize_reduction(s, stage, lanes):
                s[partial].compute_at(s[parts], part)
        return
    for stage in (moments.total, moments.distance):
        add_up_lines(s, stage, lanes)
    vectorize_elements(s, moments.mean, s[moments.mean].op.axis[-1], block, lanes)


def exceeds_caches(row: int, rows: int, target: Target) -> bool:
    """Would several passes over each of `rows` rows of `row` bytes read memory again, or leave cores without work?"""
    l2, l3 = target.cache_bytes.l2, target.cache_bytes.l3
    return row > max(l3 // _SHARE_OF_LAST, l2) or (row > l2 and rows < target.num_cores)


def schedule_by_moments(
    s: te.Schedule, result: te.Tensor, norm: te.Tensor, moments: Moments, first: int, target: Target
) -> te.Schedule:
    """Compute the normalisation `result` by `norm`, which is made of `moments`: one pass for them, one for the rest.

    Dimensions from `first` on are passed over as one: what is stored past the caches begins with whole cache lines.
    """
    s.recompute(result, norm)
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    before = inline_others(s, out, s.current(result).op)
    _schedule_moments(s, moments, target)
    for op in before:
        statistic = op.output(0)
        if s[op].attach != "root" or not uses_reduction(op) or op.num_outputs > 1 or not op.axis:
            continue
        if op.reduce_axis and not op.attrs.get("reduces_last_axis", False):
            schedule_across(s, statistic, statistic, target)
        elif not op.reduce_axis:
            vectorize_elements(s, statistic, op.axis[-1], extent_of(op.axis[-1]), lanes)
    axes = list(s[out].op.axis)
    length = constant_size([extent_of(axis) for axis in axes[first:]])
    last = s[out].fuse(*axes[first:]) if first < len(axes) - 1 else axes[-1]
    vectors = vectorize_elements(s, out, last, length if first < len(axes) - 1 else extent_of(last), lanes)
    parallel_outer(s, out, [*axes[:first], vectors], work_behind(out), target)
    return s


@register_schedule(VARIANCE, "cpu", rank=Rank.REDUCTION)
def schedule_variance(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """A variance with an elementwise tail: two passes over what is in a cache, in parts where that can't be all."""
    if len(outs) > 1:
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([outs[0].op])
    inline_injective(s, outs, keep=[anchor])
    x = next(t for t in anchor.input_tensors if not uses_reduction(t.op))
    total = next(t for t in anchor.input_tensors if uses_reduction(t.op))
    axes, out = anchor.attrs["axes"], s.outputs[0].output(0)
    along, sizes = x.ndim - 1 in axes, part_sizes(x.shape, x.dtype.nbytes, axes, target)
    if all(same_dim(sizes[a], x.shape[a]) for a in axes):
        length = max(constant_size([x.shape[a] for a in axes]), 1)
        (pass_along if along else pass_across)(s, out, (total, anchor.output(0)), length, target)
        return s
    moments = Moments(x, sizes, "variance", keepdims=anchor.attrs["keepdims"])
    count = te.cast(moments.wide, num_elements([x.shape[a] for a in axes]))
    sums = moments.sum()
    squares = moments.squared_distances(lambda *i: sums(*i) / count)
    s.recompute(anchor.output(0), squares)
    _schedule_moments(s, moments, target)
    out, result = s.outputs[0].output(0), s.current(anchor.output(0))
    combine = schedule_along if along else schedule_across
    combine(s, s.current(sums), s.current(sums), target)
    combine(s, out, result, target)
    return s
