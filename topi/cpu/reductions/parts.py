"""Reductions by parts of rows on CPUs: the parts, and the moments of each, in one pass in memory order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import attach, parallel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.prefetch import prefetch_ahead
from relayc.topi.cpu.reductions.lines import even_part
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, iterations, likely_extent
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import Dim
    from relayc.topi.moments import Moments

__all__ = ["part_by_part", "part_sizes", "schedule_parts"]

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
        _vectorize_results(s, parts, within, block, target)
    part = s[parts].fuse(*outer, last)
    if work is not None:
        parallel(s, parts, part, work, lanes)
    for stage in stages:
        attach(s, stage, parts, part)
    return part


def schedule_parts(
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
    columns = iterations([s[parts].op.axis[-1]])
    most = _columns_per_step(target)
    # a longer line is divided as evenly as whole vectors allow
    block = columns if columns <= most else -(-columns // -(-columns // most) // (2 * lanes)) * 2 * lanes
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
        # where results stay in registers, out-of-order execution runs far enough ahead on cores with few fill buffers
        by_itself = not prefetched and (not across or block <= _columns_in_registers(target))
        if not in_l1 and not (by_itself and has_few_fill_buffers(target)):
            x = moments.x  # or the tensor that it reshapes
            read = [t for t in (x, *x.op.input_tensors) if isinstance(t.op, te.PlaceholderOp)]
            whole = [t for t in read if constant_size(t.shape) == constant_size(x.shape)]
            prefetch_ahead(s, busy, loop, whole, target)
    if across:
        _vectorize_results(s, moments.shift, s[moments.shift].op.axis[-1], block, target)


def _vectorize_results(s: te.Schedule, tensor: te.Tensor, axis: te.IterVar, columns: int, target: Target) -> None:
    """Vectorise what is made from the sums of columns, in code without loops where these stay in registers."""
    vectors = vectorize_elements(s, tensor, axis, columns, vector_lanes(target))
    if columns <= _columns_in_registers(target):
        s[tensor].unroll(vectors)


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


