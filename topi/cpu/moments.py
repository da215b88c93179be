"""Moments by parts on CPUs: the first pass brings a part into the cache, the second one asks for the next part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel
from topi.cpu.injective import vectorize_elements
from topi.cpu.prefetch import LINE_BYTES, is_streamed
from topi.cpu.reduction import add_up_lines, schedule_across, vectorize_reduction
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, extent_of, likely_extent
from topi.tuning import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backend.target import Target
    from te.tir import Dim
    from topi.moments import Moments

__all__ = ["part_sizes", "schedule_moments"]

_COLUMNS = 512
"""Elements of a line that partial results are kept of at once, where lines are added up."""
_LIKELY = 64
"""What a length that is known at run time is taken to be."""


def part_sizes(x: te.Tensor, reduced: Sequence[int], target: Target) -> dict[int, Dim]:
    """How many elements along each dimension of `reduced` make a part of x that an eighth of the second-level cache
    holds: whole dimensions from the last one on, a part of the next, one element of those before."""
    nbytes, last = x.dtype.nbytes, x.ndim - 1
    room = choose("part", target.cache_bytes.l2 // 8, [target.cache_bytes.l2 // n for n in (4, 16, 32)]) // nbytes
    if last not in reduced:
        room //= min(likely_extent(x.shape[last], _COLUMNS), _COLUMNS)
    sizes: dict[int, Dim] = {}
    for axis in sorted(reduced, reverse=True):
        extent = x.shape[axis]
        length = likely_extent(extent, _LIKELY)
        if length <= max(room, 1) or not sizes and not isinstance(extent, int):
            sizes[axis] = extent
        else:
            sizes[axis] = _even_part(length, max(room, 1)) if isinstance(extent, int) else max(room, 1)
        room = room // length
    return dict(sorted(sizes.items()))


def _even_part(length: int, most: int) -> int:
    """The largest divisor of a length up to `most`, unless it is much less than that."""
    divisor = next(n for n in range(most, 0, -1) if length % n == 0)
    return divisor if 4 * divisor >= most else most


def schedule_moments(s: te.Schedule, moments: Moments, target: Target) -> None:
    """Every part by itself: its sum, its mean, then the distances from that, while memory brings the next part."""
    parts, lanes = moments.sums, vector_lanes(target)
    *outer, last = s[parts].op.axis
    across = moments.x.ndim - 1 not in moments.sizes
    block = min(constant_size([extent_of(last)]), _COLUMNS) if across else 1
    if across:
        tail = "shift" if isinstance(extent_of(last), int) else "guard"
        last, within = s[parts].split(last, factor=block, tail=tail)
        vectorize_elements(s, parts, within, block, lanes)
    part = s[parts].fuse(*outer, last)
    parallel(s, parts, part, constant_size(moments.x.shape) * 4.0, lanes)
    for stage in (moments.total, moments.mean, moments.distance):
        s[stage].set_scope("local")
        s[stage].compute_at(s[parts], part)
    if not across:
        for stage in (moments.total, moments.distance):
            for partial in vectorize_reduction(s, stage, lanes):
                s[partial].compute_at(s[parts], part)
        return
    line = LINE_BYTES // moments.x.dtype.nbytes  # fetched ahead by whole lines
    wide = line if block % line == 0 else lanes
    add_up_lines(s, moments.total, wide)
    vectorize_elements(s, moments.mean, s[moments.mean].op.axis[-1], block, lanes)
    busy = add_up_lines(s, moments.distance, wide)
    if block == extent_of(moments.total.op.axis[-1]):
        _prefetch_next_part(s, moments, busy, target)


def _prefetch_next_part(s: te.Schedule, moments: Moments, busy: te.IterVar, target: Target) -> None:
    """Ask in `busy`, a loop over the vectors of a part, for those of the part that comes next in memory."""
    x, inner = moments.x, [d for a, d in enumerate(moments.x.shape) if a not in moments.sizes and a > max(moments.sizes)]
    if not isinstance(x.op, te.PlaceholderOp) or not all(isinstance(d, int) for d in (*moments.sizes.values(), *inner)):
        return
    length = constant_size([*moments.sizes.values(), *inner])
    if is_streamed(x, length, target):
        s[moments.distance].prefetch_ahead(x, busy, -length if any(moments.turned) else length)
