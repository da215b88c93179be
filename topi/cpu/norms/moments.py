"""Moments by parts on CPUs: one pass over memory in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import parallel, parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.row_statistics import inline_others, uses_reduction, work_behind
from relayc.topi.cpu.prefetch import elements_ahead, is_streamed
from relayc.topi.cpu.reductions.reduction import (
    add_up_lines,
    pass_across,
    pass_along,
    schedule_across,
    schedule_along,
    vectorize_reduction,
)
from relayc.topi.cpu.stagewise import schedule_stagewise
from relayc.topi.cpu.tiling import has_few_fill_buffers, prefetches_to_l1, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective, likely_extent
from relayc.topi.moments import Moments
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.tag import VARIANCE
from relayc.topi.tuning import choose
from relayc.topi.utils import num_elements, same_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import Dim

__all__ = [
    "exceeds_caches", "exceeds_near_caches", "moments_apart", "moments_at", "part_by_part", "part_sizes",
    "schedule_by_moments", "schedule_rows_by_moments", "schedule_variance",
]  # fmt: skip

_COLUMNS = 1024
"""Elements of a line that several passes over lines take at once."""
_COLUMN_BYTES = 12
"""What is kept of a column where lines are added up: two results, and what distances are measured from."""
_FEWEST_LINES = 256
"""Lines of a part, where they lie across memory: each part has two results for each column, which are read twice."""
_PIECE_BYTES = 1024
"""Of lines that are added up in the order of memory, so much is taken at once: half of it where results stay in
registers, so that none are loaded and stored again."""
_LINES_OF_PARTS = 8
"""Of lines that are no whole vectors so many are taken at once: ends of vectors cost more than order gains."""
_SHARE_ALONG, _SHARE_ACROSS = 4, 2
"""Which part of the second-level cache is gone over twice: a larger one in pieces of lines."""
_SHARE_OF_LLC = 2
"""Rows up to such a part of the last cache are found there again."""
_LIKELY = 64
"""What a length that is known at run time is taken to be."""


def part_sizes(
    shape: Sequence[Dim], nbytes: int, reduced: Sequence[int], target: Target, room: int | None = None,
    lines: int | None = None,
) -> dict[int, Dim]:  # fmt: skip
    """How many elements along each dimension of `reduced` make a part of a tensor of `shape`, elements of `nbytes`.

    Whole dimensions from the last one on, a part of the next, one element of those before: what `room` bytes hold. By
    default they are those of the first-level cache; where lines lie across memory they are `_FEWEST_LINES`, unless the
    second-level cache holds less, or a core's share is, or the number of `lines`.
    """
    last = len(shape) - 1
    most = _COLUMNS if room is not None else _columns_per_step(target)
    line = 1 if last in reduced else min(likely_extent(shape[last], most), most)
    if room is None:
        l1, l2 = target.cache_bytes.l1, target.cache_bytes.l2
        share = constant_size(shape) * nbytes // target.num_cores
        own = max(l1, min(_FEWEST_LINES * line * nbytes, l2, share))
        room = choose("part", own, [l1, *[l2 // n for n in (2, 4, 8, 16)]])
    room = room // (nbytes * line) if lines is None or last in reduced else lines
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
    """The largest divisor of a length up to `most`, unless it is much less: the last part is shorter then."""
    divisor = next(n for n in range(most, 0, -1) if length % n == 0)
    return divisor if 2 * divisor >= most else most


def _columns_per_step(target: Target) -> int:
    """Columns of which two thirds of the first-level cache keep what is kept: lines of so many are read as a whole."""
    return 2 * target.cache_bytes.l1 // 3 // _COLUMN_BYTES


def _even_block(columns: int, most: int, lanes: int) -> int:
    """Whole vectors of a line that is longer than the `most` columns taken at once, as evenly as it can be divided."""
    return -(-columns // -(-columns // most) // (2 * lanes)) * 2 * lanes


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
    s: te.Schedule, moments: Moments, target: Target, at: tuple[te.Tensor, te.IterVar] | None = None,
    asked: bool = False,
) -> None:  # fmt: skip
    """Every part by itself: the mean of its beginning, distances from that. Parts of one iteration, where `at` is.

    `asked`: they have been asked for, a row ahead. Several lines are taken at once then, and nothing is asked for; but
    cores that wait for few lines have let some of them go: these take lines in order, and ask for them again.
    """
    parts, lanes = moments.sums, vector_lanes(target)
    near = asked and prefetches_to_l1(target)
    across = moments.x.ndim - 1 not in moments.sizes
    columns = constant_size([extent_of(s[parts].op.axis[-1])])
    most = _columns_per_step(target)
    block = columns if columns <= most else _even_block(columns, most, lanes)
    stages = (moments.beginning, moments.shift, moments.distances[0])
    work = None if at is not None else constant_size(moments.x.shape) * 4.0
    part = part_by_part(s, parts, stages, block if across else None, work, target)
    if at is not None:
        s[parts].compute_at(s[at[0]], at[1])
    for stage in (moments.beginning, moments.distances[0]):
        if across:
            loop, busy = _pass_in_order(s, stage, block, lanes, near, target), stage
        else:
            partials = vectorize_reduction(s, stage, lanes)
            for partial in partials:
                s[partial].compute_at(s[parts], part)
            busy = partials[0] if partials else stage
            loop = s[busy].op.reduce_axis[-1]
        if not near:
            by_itself = not asked and (not across or block <= _columns_in_registers(target))
            _prefetch_ahead(s, busy, loop, moments.x, target, by_itself=by_itself)
    if across:
        vectorize_elements(s, moments.shift, s[moments.shift].op.axis[-1], block, lanes)


def _pass_in_order(
    s: te.Schedule, stage: te.Tensor, columns: int, lanes: int, near: bool, target: Target
) -> te.IterVar:
    """Let a reduction pass over lines of `columns` in their order, some vectors of one at a time; returns their loop.

    Results stay in registers where those have room for a line's, two and what distances are measured from. What is
    `near` needs no order: results are loaded and stored for several lines together.
    """
    *data, column = s[stage].op.axis
    *before, line = s[stage].op.reduce_axis
    lines, vectors, fitting = extent_of(line), -(-columns // lanes), _columns_in_registers(target) // lanes
    at_once = vectors if vectors <= fitting else max(n for n in (4, 3, 2, 1) if vectors % n == 0)
    nbytes = _PIECE_BYTES if vectors > at_once else _PIECE_BYTES // 2
    least = 1 if columns % lanes == 0 and not near else _LINES_OF_PARTS
    together = max(nbytes // (columns * s[stage].op.output(0).dtype.nbytes), least)
    each = max(n for n in range(1, together + 1) if not isinstance(lines, int) or lines % n == 0)
    lines, within = s[stage].split(line, factor=each)
    block, inner = s[stage].split(column, factor=at_once * lanes)
    vector, lane = s[stage].split(inner, factor=lanes)
    s[stage].reorder(*data, *before, lines, block, within, vector, lane)
    s[stage].unroll(within)
    s[stage].unroll(vector)
    s[stage].vectorize(lane)
    return block if vectors > at_once else lines


def _columns_in_registers(target: Target) -> int:
    """Columns whose two results, and what distances are measured from, registers have room for."""
    return (target.vector_registers - 2) // 3 * vector_lanes(target)


def _prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, x: te.Tensor, target: Target, *, by_itself: bool
) -> None:
    """Ask, in each iteration of `loop`, for what of `x` lies a little further on, if it is more than caches hold.

    It may be in the shape that another tensor is seen in. `by_itself`: results stay in registers, and memory is all
    that is read; a core that waits for few lines comes far enough ahead then, and loses by asking.
    """
    few = has_few_fill_buffers(target)
    if few and by_itself:
        return
    for tensor in (x, *x.op.input_tensors):
        read = isinstance(tensor.op, te.PlaceholderOp) and constant_size(tensor.shape) == constant_size(x.shape)
        if read and is_streamed(tensor, 1, target):
            s[stage].prefetch_ahead(tensor, loop, elements_ahead(tensor.dtype.nbytes, target), to_l1=not few)


def exceeds_caches(row: int, rows: int, target: Target) -> bool:
    """Would several passes over each of `rows` rows of `row` bytes read memory again, or leave cores without work?"""
    l2, l3 = target.cache_bytes.l2, target.cache_bytes.l3
    return row > max(l3 // _SHARE_OF_LLC, l2) or (row > l2 and rows < target.num_cores)


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
    out = s.outputs[0].output(0)
    before = inline_others(s, out, s.current(result).op)
    moments_apart(s, before, moments, target)
    axes = list(s[out].op.axis)
    vectors, _ = vectorize_rows(s, out, axes[first:], target)
    parallel_outer(s, out, [*axes[:first], vectors], work_behind(out), target)
    return s


def schedule_rows_by_moments(
    s: te.Schedule,
    result: te.Tensor,
    norm: te.Tensor,
    moments: Moments,
    outer: Sequence[int],
    target: Target,
    group: int = 1,
) -> te.Schedule:
    """As `schedule_by_moments`, row by row: each is standardised while a cache has it.

    The dimensions `outer` tell rows apart; `group` indices of the last of them are one.
    """
    s.recompute(result, norm)
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    before = inline_others(s, out, s.current(result).op)
    axes = list(s[out].op.axis)
    rows, trailing = [axes[a] for a in outer], axes[max(outer) + 1 :]
    s[out].reorder(*rows, *[axis for a, axis in enumerate(axes) if a not in outer])
    if group > 1:
        rows[-1], _ = s[out].split(rows[-1], factor=group)
    row = s[out].fuse(*rows)
    parallel(s, out, row, work_behind(out), lanes)
    if moments.x.ndim - 1 in moments.sizes:
        vectorize_rows(s, out, trailing, target)
    else:
        vectorize_elements(s, out, axes[-1], extent_of(axes[-1]), lanes)
    moments_at(s, before, moments, out, row, target)
    return s


def moments_apart(s: te.Schedule, before: Sequence[te.ComputeOp], moments: Moments, target: Target) -> None:
    """Compute `moments`, and what of `before` is made of them, before anything else."""
    _schedule_moments(s, moments, target)
    for op in before:
        statistic = op.output(0)
        if s[op].attach != "root" or not uses_reduction(op) or op.num_outputs > 1 or not op.axis:
            continue
        if op.reduce_axis and not op.attrs.get("reduces_last_axis", False):
            schedule_across(s, statistic, statistic, target)
        elif not op.reduce_axis:
            vectorize_elements(s, statistic, op.axis[-1], extent_of(op.axis[-1]), vector_lanes(target))


def moments_at(
    s: te.Schedule, before: Sequence[te.ComputeOp], moments: Moments, out: te.Tensor, row: te.IterVar, target: Target,
    *, asked: bool = False,
) -> None:  # fmt: skip
    """Compute `moments`, and what of `before` is made of them, at the loop `row` of `out`.

    `asked`: what they are of has been asked for, a row ahead.
    """
    lanes = vector_lanes(target)
    _schedule_moments(s, moments, target, (out, row), asked)
    for op in before:
        if s[op].attach != "root" or not uses_reduction(op):
            continue
        statistic = op.output(0)
        s[statistic].compute_at(s[out], row)
        if moments.x.ndim - 1 in moments.sizes or op.attrs.get("reduces_last_axis", False):
            continue
        if op.reduce_axis:
            add_up_lines(s, statistic, lanes)
        else:
            vectorize_elements(s, statistic, op.axis[-1], extent_of(op.axis[-1]), lanes)


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
