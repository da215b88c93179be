"""Moments by parts on CPUs: the first pass over a part brings it into the cache for the second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import te
from topi.cpu.common import parallel, parallel_outer
from topi.cpu.injective import vectorize_elements
from topi.cpu.prefetch import LINE_BYTES, inputs_of, is_streamed
from topi.cpu.reduction import (
    add_up_lines,
    lines_at_once,
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
from topi.utils import num_elements, ravel_index, same_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backend.target import Target
    from te.tir import Dim

__all__ = [
    "exceeds_caches", "exceeds_near_caches", "part_by_part", "part_sizes", "schedule_by_moments",
    "schedule_rows_by_moments", "schedule_variance",
]  # fmt: skip

_COLUMNS = 1024
"""Elements of a line that partial results are kept of at once, where lines are added up."""
_FEWEST_LINES = 32
"""Lines of a part at least, where they lie across memory: each part has a result for each column."""
_SHARE_ALONG, _SHARE_ACROSS = 4, 2
"""Which part of the second-level cache is gone over twice: a larger one in pieces of lines."""
_SHARE_OF_LAST = 2
"""Rows up to such a part of the last cache are found there again."""
_LIKELY = 64
"""What a length that is known at run time is taken to be."""


def near_bytes(target: Target) -> int:
    """What of a tensor the first-level cache holds while the next part of it arrives, and room for all else is left."""
    return target.cache_bytes.l1 // 3


def part_sizes(
    shape: Sequence[Dim], nbytes: int, reduced: Sequence[int], target: Target, room: int | None = None
) -> dict[int, Dim]:
    """How many elements along each dimension of `reduced` make a part of a tensor of `shape`, elements of `nbytes`.

    Whole dimensions from the last one on, a part of the next, one element of those before: what `room` bytes hold. By
    default they are those of the first-level cache, of which the next part is asked for; where lines lie across memory
    and are so long that it holds few of them, half of the second-level cache.
    """
    last = len(shape) - 1
    line = 1 if last in reduced else min(likely_extent(shape[last], _COLUMNS), _COLUMNS)
    if room is None:
        near, l2 = near_bytes(target), target.cache_bytes.l2
        own = near if near >= _FEWEST_LINES * line * nbytes else l2 // _SHARE_ACROSS
        room = choose("part", own, [near, *[l2 // n for n in (2, 4, 8, 16)]])
    room //= nbytes * line
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
    s: te.Schedule, parts: te.Tensor, stages: Sequence[te.Tensor], block: int | None, work: float | None, target: Target
) -> te.IterVar:
    """Compute `stages`, of which `parts` is made, for each part; returns the loop over parts.

    `block`: so many columns are taken together, where lines lie across memory. Threads share the parts if they are
    worth it, `work` in all; None where they don't.
    """
    lanes = vector_lanes(target)
    *outer, last = s[parts].op.axis
    if block is not None:
        tail = "shift" if isinstance(extent_of(last), int) else "guard"
        last, within = s[parts].split(last, factor=block, tail=tail)
        vectorize_elements(s, parts, within, block, lanes)
    part = s[parts].fuse(*outer, last)
    if work is not None:
        parallel(s, parts, part, work, lanes)
    for stage in stages:
        s[stage].set_scope("local")
        s[stage].compute_at(s[parts], part)
    return part


def _schedule_moments(
    s: te.Schedule, moments: Moments, target: Target, at: tuple[te.Tensor, te.IterVar] | None = None
) -> None:
    """Every part by itself: its sum, its mean, then the distances from that. Parts of one iteration, where `at` is."""
    parts, lanes = moments.sums, vector_lanes(target)
    across = moments.x.ndim - 1 not in moments.sizes
    columns = constant_size([extent_of(s[parts].op.axis[-1])])
    block = columns if columns <= _COLUMNS else _even_block(columns, lanes)
    stages = (moments.total, moments.mean, moments.distance)
    work = None if at is not None else constant_size(moments.x.shape) * 4.0
    part = part_by_part(s, parts, stages, block if across else None, work, target)
    if at is not None:
        s[parts].compute_at(s[at[0]], at[1])
    x, elements = moments.x, constant_size(list(moments.sizes.values())) * (columns if across else 1)
    near = elements * x.dtype.nbytes <= near_bytes(target)
    for half, stage in enumerate((moments.total, moments.distance)):
        if across:
            loop, busy = add_up_lines(s, stage, lanes, near=near), stage
        else:
            partials = vectorize_reduction(s, stage, lanes)
            for partial in partials:
                s[partial].compute_at(s[parts], part)
            busy = partials[0] if partials else stage
            loop = s[busy].op.reduce_axis[-1]
        if near and is_streamed(x, elements, target) and all(isinstance(d, int) for d in x.shape):
            _ask_for_half(s, busy, loop, moments, half)
    if not across:
        return
    vectorize_elements(s, moments.mean, s[moments.mean].op.axis[-1], block, lanes)


def _ask_for_half(s: te.Schedule, stage: te.Tensor, loop: te.IterVar, moments: Moments, half: int) -> None:
    """Ask for one half of the next part while a pass is made over one: memory is busy during both, in its order.

    `loop` of `stage` passes over groups of lines where these lie across memory, else over groups of vectors.
    """
    x, op, sizes = moments.x, s[stage].op, moments.sizes
    shape, steps = ([constant_size([extent]) for extent in of] for of in (x.shape, map(extent_of, op.reduce_axis)))
    across = x.ndim - 1 not in sizes
    together = lines_at_once(extent_of(op.reduce_axis[-1])) if across else 1
    part = constant_size(list(sizes.values())) * (shape[-1] if across else 1)
    count, line = -(-constant_size(steps) // together), LINE_BYTES // x.dtype.nbytes
    step = -(-part // (2 * count))

    def place(ahead: int) -> Callable[..., Sequence[Any]]:
        def index(*i: Any) -> Sequence[Any]:
            before, ks = i[: len(op.axis)][-x.ndim :], i[len(op.axis) :]
            first = [v * sizes.get(a, 1) for a, v in enumerate(before)]
            begin = ravel_index([*first[:-1], 0] if across else first, shape)
            return (begin + part + half * (part // 2) + ravel_index(ks, steps) // together * step + ahead,)

        return index

    for tensor in inputs_of(op):
        if constant_size(tensor.shape) == constant_size(shape):
            for ahead in range(0, step, line):
                s[stage].prefetch_line(tensor, loop, place(ahead))


def exceeds_caches(row: int, rows: int, target: Target) -> bool:
    """Would several passes over each of `rows` rows of `row` bytes read memory again, or leave cores without work?"""
    l2, l3 = target.cache_bytes.l2, target.cache_bytes.l3
    return row > max(l3 // _SHARE_OF_LAST, l2) or (row > l2 and rows < target.num_cores)


def exceeds_near_caches(row: int, target: Target) -> bool:
    """Would several passes over a row of so many bytes read it from a cache that is no core's own?"""
    return row > target.cache_bytes.l2 // _SHARE_ACROSS


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


def schedule_rows_by_moments(
    s: te.Schedule, result: te.Tensor, norm: te.Tensor, moments: Moments, first: int, group: int, target: Target
) -> te.Schedule:
    """As `schedule_by_moments`, row by row: each is standardised while a cache has it.

    A row begins at dimension `first`; `group` indices of the dimension in front are one.
    """
    s.recompute(result, norm)
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    before = inline_others(s, out, s.current(result).op)
    outer, inner = list(s[out].op.axis[:first]), list(s[out].op.axis[first:])
    if group > 1:
        outer[-1], _ = s[out].split(outer[-1], factor=group)
    row = s[out].fuse(*outer)
    parallel(s, out, row, work_behind(out), lanes)
    length = constant_size([extent_of(axis) for axis in inner])
    vectorize_elements(s, out, s[out].fuse(*inner), length, lanes)
    _schedule_moments(s, moments, target, (out, row))
    for op in before:
        if s[op].attach == "root" and uses_reduction(op):
            s[op].compute_at(s[out], row)
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
    along, l2 = x.ndim - 1 in axes, target.cache_bytes.l2
    fitting = part_sizes(x.shape, x.dtype.nbytes, axes, target, l2 // (_SHARE_ALONG if along else _SHARE_ACROSS))
    if all(same_dim(fitting[a], x.shape[a]) for a in axes):
        length = max(constant_size([x.shape[a] for a in axes]), 1)
        (pass_along if along else pass_across)(s, out, (total, anchor.output(0)), length, target)
        return s
    sizes = part_sizes(x.shape, x.dtype.nbytes, axes, target)
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
