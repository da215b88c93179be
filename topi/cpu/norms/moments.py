"""Means and variances by parts on CPUs: one pass over memory, in memory order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.common import parallel, parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import uses_reduction
from relayc.topi.cpu.norms.row_statistics import estimated_work, inline_others
from relayc.topi.cpu.prefetch import in_sequence, is_streamed
from relayc.topi.cpu.reductions.lines import add_up_lines, even_part
from relayc.topi.cpu.reductions.reduction import (
    pass_across,
    pass_along,
    schedule_across,
    schedule_along,
    vectorize_reduction,
)
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
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
    "part_by_part",
    "part_sizes",
    "schedule_by_moments",
    "schedule_moments_at",
    "schedule_moments_at_root",
    "schedule_rows_by_moments",
    "schedule_variance",
]  # fmt: skip

_COLUMNS = 1024
"""Most elements of a line that two-pass schedules take at once."""
_COLUMN_BYTES = 12
"""Bytes kept per column where lines are accumulated: two sums and the shift that distances are measured from."""
_FEWEST_LINES = 256
"""Lines of a part, for reductions along a strided axis: each part has two results per column, which are read twice."""
_PIECE_BYTES = 1024
"""Bytes of lines accumulated at once in memory order; half of that where results stay in registers, so that none are
loaded and stored again."""
_LINES_OF_PARTS = 8
"""Lines taken at once where they are not whole vectors: vector tails cost more than memory order gains."""
_SHARE_ALONG, _SHARE_ACROSS = 4, 2
"""Divisors of the L2 size, for rows along memory and along a strided axis: the most that two passes go over."""
_LIKELY = 64
"""Assumed length of a dynamic dimension, in elements."""


def part_sizes(
    shape: Sequence[Dim], nbytes: int, reduced: Sequence[int], target: Target, room: int | None = None,
    lines: int | None = None,
) -> dict[int, Dim]:  # fmt: skip
    """Return the extent of a part along each dimension of `reduced`, for a tensor of `shape`, elements of `nbytes`.

    A part takes whole dimensions from the last one on, a piece of the next, one element of those before: as much as
    `room` bytes hold, by default the L1 size. Along a strided axis a part is `lines` lines, by default
    `_FEWEST_LINES`, limited by the L2 size and by a core's share of the tensor.
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
            sizes[axis] = even_part(length, max(room, 1)) if isinstance(extent, int) else max(room, 1)
        room = room // length
    return dict(sorted(sizes.items()))


def _columns_per_step(target: Target) -> int:
    """Most columns that are read as whole lines: two thirds of L1 hold what is kept of them."""
    return 2 * target.cache_bytes.l1 // 3 // _COLUMN_BYTES


def _even_block(columns: int, most: int, lanes: int) -> int:
    """Divide a line of more than `most` columns as evenly as whole vectors allow; returns the columns of a block."""
    return -(-columns // -(-columns // most) // (2 * lanes)) * 2 * lanes


def part_by_part(
    s: te.Schedule, parts: te.Tensor, stages: Sequence[te.Tensor], block: int | None, work: float | None, target: Target
) -> te.IterVar:
    """Compute `stages`, which `parts` is made from, for each part; returns the loop over parts.

    `block`: columns taken together in reductions along a strided axis. The loop is parallel if `work`, the operations
    of the whole, is enough; never where `work` is None.
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
    prefetched: bool = False,
) -> None:  # fmt: skip
    """Compute each part by itself: the mean of its beginning as a shift, then moments of distances from the shift.

    `at`: the tensor and loop to compute the parts at. `prefetched`: the data was prefetched a row ahead, so several
    lines are taken at once without prefetches; cores with few line-fill buffers have dropped some of those, and take
    lines in order and prefetch them again.
    """
    parts, lanes = moments.sums, vector_lanes(target)
    in_l1 = prefetched and not has_few_fill_buffers(target)
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
            loop, busy = _pass_in_order(s, stage, block, lanes, in_l1, target), stage
        else:
            partials = vectorize_reduction(s, stage, lanes, (parts, part))
            busy = partials[0] if partials else stage
            loop = s[busy].op.reduce_axis[-1]
        if not in_l1:
            by_itself = not prefetched and (not across or block <= _columns_in_registers(target))
            _prefetch_ahead(s, busy, loop, moments.x, target, by_itself=by_itself)
    if across:
        vectorize_elements(s, moments.shift, s[moments.shift].op.axis[-1], block, lanes)


def _pass_in_order(
    s: te.Schedule, stage: te.Tensor, columns: int, lanes: int, in_l1: bool, target: Target
) -> te.IterVar:
    """Reduce lines of `columns` in memory order, some vectors of a line at a time; returns the loop over those.

    Results stay in registers if the two sums and the shift of a whole line fit. Data `in_l1` needs no order:
    results are loaded and stored once for several lines.
    """
    *data, column = s[stage].op.axis
    *before, line = s[stage].op.reduce_axis
    lines, vectors, fitting = extent_of(line), -(-columns // lanes), _columns_in_registers(target) // lanes
    at_once = vectors if vectors <= fitting else max(n for n in (4, 3, 2, 1) if vectors % n == 0)
    nbytes = _PIECE_BYTES if vectors > at_once else _PIECE_BYTES // 2
    least = 1 if columns % lanes == 0 and not in_l1 else _LINES_OF_PARTS
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
    """Return how many columns have their two sums and their shift in registers."""
    return (target.vector_registers - 2) // 3 * vector_lanes(target)


def _prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, x: te.Tensor, target: Target, *, by_itself: bool
) -> None:
    """Prefetch, in each iteration of `loop`, a little ahead in `x`, or in the tensor it reshapes, if it exceeds caches.

    `by_itself`: results stay in registers and only memory is read. Out-of-order execution runs far enough ahead then
    on cores with few line-fill buffers, where prefetches would only cost time.
    """
    if by_itself and has_few_fill_buffers(target):
        return
    for tensor in (x, *x.op.input_tensors):
        read = isinstance(tensor.op, te.PlaceholderOp) and constant_size(tensor.shape) == constant_size(x.shape)
        if read and is_streamed(tensor, 1, target):
            s[stage].prefetch(tensor, loop, in_sequence(tensor, target))


def schedule_by_moments(
    s: te.Schedule, result: te.Tensor, norm: te.Tensor, moments: Moments, first: int, target: Target
) -> te.Schedule:
    """Compute the normalisation `result` as `norm`: one pass for its `moments`, one that normalises.

    Dimensions from `first` on are fused into one, so that non-temporal stores begin with whole cache lines.
    """
    s.recompute(result, norm)
    out = s.outputs[0].output(0)
    before = inline_others(s, out, s.current(result).op)
    schedule_moments_at_root(s, before, moments, target)
    axes = list(s[out].op.axis)
    vectors, _ = vectorize_rows(s, out, axes[first:], target)
    parallel_outer(s, out, [*axes[:first], vectors], estimated_work(out), target)
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
    """Compute the normalisation `result` as `norm` row by row: each is normalised while a cache holds it.

    Rows are indexed by the dimensions `outer`; `group` consecutive indices of the last of them are one row.
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
    parallel(s, out, row, estimated_work(out), lanes)
    if moments.x.ndim - 1 in moments.sizes:
        vectorize_rows(s, out, trailing, target)
    else:
        vectorize_elements(s, out, axes[-1], extent_of(axes[-1]), lanes)
    schedule_moments_at(s, before, moments, out, row, target)
    return s


def schedule_moments_at_root(s: te.Schedule, before: Sequence[te.ComputeOp], moments: Moments, target: Target) -> None:
    """Compute `moments`, and the stages of `before` that use them, at root, before the normalisation."""
    _schedule_moments(s, moments, target)
    for op in before:
        statistic = op.output(0)
        if s[op].attach != "root" or not uses_reduction(op) or op.num_outputs > 1 or not op.axis:
            continue
        if op.reduce_axis and not op.attrs.get("reduces_last_axis", False):
            schedule_across(s, statistic, statistic, target)
        elif not op.reduce_axis:
            vectorize_elements(s, statistic, op.axis[-1], extent_of(op.axis[-1]), vector_lanes(target))


def schedule_moments_at(
    s: te.Schedule, before: Sequence[te.ComputeOp], moments: Moments, out: te.Tensor, row: te.IterVar, target: Target,
    *, prefetched: bool = False,
) -> None:  # fmt: skip
    """Compute `moments`, and the stages of `before` that use them, at the loop `row` of `out`.

    `prefetched`: their input was prefetched a row ahead.
    """
    lanes = vector_lanes(target)
    _schedule_moments(s, moments, target, (out, row), prefetched)
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
    """Schedule a variance with an elementwise tail: two passes over rows in a cache, or parts where they don't fit."""
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _mean_and_variance(kernel: KernelFacts) -> te.Schedule | Refused:
    s, outs, anchor, target = kernel.create_schedule(), kernel.outs, kernel.anchor, kernel.target
    if not kernel.has_one_result:
        return Refused("there are several results")
    inline_injective(s, outs, keep=[anchor])
    x = next(t for t in anchor.input_tensors if not uses_reduction(t.op))
    total = next(t for t in anchor.input_tensors if uses_reduction(t.op))
    axes, out = anchor.attrs["axes"], s.outputs[0].output(0)
    along, l2 = x.ndim - 1 in axes, target.cache_bytes.l2
    fitting = part_sizes(x.shape, x.dtype.nbytes, axes, target, l2 // (_SHARE_ALONG if along else _SHARE_ACROSS))
    fits = all(same_dim(fitting[a], x.shape[a]) for a in axes)
    note("variance", "two passes" if fits else "moments of parts", part=", ".join(map(str, fitting.values())))
    if fits:
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


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("mean and variance", _mean_and_variance),
    ("stage by stage", stage_by_stage),
)
