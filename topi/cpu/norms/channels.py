"""Instance and group normalisation on CPUs: of channels, or groups of them, over the other dimensions of an image."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.te.tir import PrimExpr
from relayc.topi.candidates import Candidate, schedule_by
from relayc.topi.cpu.common import parallel, parallel_outer
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import RowFacts, inline_all_but, loop_over_rows, statistics_at
from relayc.topi.cpu.norms.moments import Stored, by_moments_of_parts, moments_of, normalized, schedule_by_moments
from relayc.topi.cpu.prefetch import prefetch_next
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import partitions_evenly, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_channelwise"]

_SHARE_OF_PIXELS = 6
"""Divisor of the L1 size: the most bytes of pixels taken as one line, of which three results are kept per element."""


@register_schedule(["instance_norm", "group_norm"], "cpu", rank=Rank.HEAVY)
def schedule_channelwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Standardise channels over the other dimensions; with channels first a row is a channel or a group.

    Where channels are the last dimension, or no cache holds a row, one pass over the image computes the moments of
    channels, from which those of groups are combined, and a second pass standardises. This goes image by image if
    there are enough images for all cores, so that the second pass reads from the caches.
    """
    axes = tuple([a for a in range(1, len(anchor.axis)) if a != anchor.attrs["axis"]])
    return schedule_by(_CHANNELWISE, RowFacts(outs, anchor, target, axes, int(anchor.attrs.get("group_size", 1))))


def _other_channels(rows: RowFacts) -> te.Schedule | Refused:
    if rows.has_one_result and rows.anchor.attrs["axis"] in (1, len(rows.anchor.axis) - 1):
        return Refused("one result, with channels first or last")
    return stage_by_stage(rows)


def _channels_last(rows: RowFacts) -> te.Schedule | Refused:
    if rows.anchor.attrs["axis"] == 1:
        return Refused("channels are first")
    images = rows.over(range(1, rows.result.ndim))
    evenly = partitions_evenly(images.count, rows.target.num_cores)
    by_rows = rows.is_static and evenly and not images.exceed_caches
    note("moments", "image by image" if by_rows else "of parts")
    return _schedule_lines(rows, by_rows) if rows.is_static else by_moments_of_parts(rows, by_rows)


def _channels_by_moments(rows: RowFacts) -> te.Schedule | Refused:
    if not rows.is_static or not rows.exceed_private_caches:
        return Refused(f"a dynamic shape, or a core's caches hold a row of {rows.row_bytes} bytes for a second pass")
    note("moments", "of parts" if rows.exceed_caches else "row by row")
    return by_moments_of_parts(rows, not rows.exceed_caches)


def _channel_by_channel(rows: RowFacts) -> te.Schedule:
    s, out, target = rows.create_schedule(), rows.out, rows.target
    inline_all_but(s, out, rows.statistics)
    _, _, *rest = s[out].op.axis
    row = loop_over_rows(s, out, rows)
    vectors, each = vectorize_rows(s, out, rest, target)
    statistics_at(s, rows.statistics, out, row, rows)
    prefetch_next(s, out, vectors, rows.length, each, target)
    return s


_CHANNELWISE: tuple[Candidate[RowFacts], ...] = (
    ("stage by stage", _other_channels), ("moments of images", _channels_last), ("moments", _channels_by_moments),
    ("row by row", _channel_by_channel),
)  # fmt: skip


def _schedule_lines(rows: RowFacts, by_rows: bool) -> te.Schedule:
    """Channels in the last dimension: an image is split into lines, each the channels of a few consecutive pixels."""
    x, target = rows.elements, rows.target
    images, *sizes = [constant_size([d]) for d in x.shape]
    pixels, lanes = _pixels_per_line(sizes, target), vector_lanes(target)
    line = max(pixels * sizes[-1], 1)
    shape = (images, constant_size(sizes) // line, line)
    flat = te.compute(shape, lambda b, p, c: x(b, *unravel_index(p * line + c, sizes)), name="lines", tag="injective")
    moments = moments_of(rows, flat, (1,))
    norm = normalized(rows, moments, 2, pixels)

    def in_shape(*i: Any) -> PrimExpr:
        at = ravel_index(i[1:], sizes)
        return norm(i[0], at // line, at % line)

    def store(s: te.Schedule, out: te.Tensor) -> Stored:
        image, *rest = s[out].op.axis
        each, within = s[out].split(s[out].fuse(*rest), factor=line)
        vectors = vectorize_elements(s, out, within, line, lanes)
        if by_rows:
            parallel(s, out, image, rows.work, lanes)
        else:
            parallel_outer(s, out, [image, each], rows.work, target)
        return (image, vectors, elements_per_step(line, lanes)) if by_rows else (None, vectors, 0)

    return schedule_by_moments(rows, moments, norm, store, te.compute(x.shape, in_shape, name=rows.anchor.name))


def _pixels_per_line(sizes: Sequence[int], target: Target) -> int:
    """Pixels of an image of `sizes` that fill whole vectors, preferably two; 1 where no such number fits."""
    pixels, channels, lanes = constant_size(sizes[:-1]), sizes[-1], vector_lanes(target)
    for unit in (2 * lanes, lanes):
        each = unit // gcd(channels, unit)
        if pixels % each == 0 and each * channels * 4 <= target.cache_bytes.l1 // _SHARE_OF_PIXELS:
            return each
    return 1
