"""Standardisation on CPUs, over any dimensions: of rows, of pixels, of channels or groups of channels."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, note, serves_if
from relayc.te.tir import PrimExpr
from relayc.topi.candidates import Candidate, schedule_by
from relayc.topi.cpu.column_blocks import Columns
from relayc.topi.cpu.common import parallel, parallel_outer
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import RowFacts, inline_others, loop_over_rows, statistics_at
from relayc.topi.cpu.norms.moments import moments_of, schedule_by_moments, schedule_moments
from relayc.topi.cpu.norms.rows import schedule_rowwise
from relayc.topi.cpu.norms.strided_axis import is_worth_copying, schedule_strided_axis
from relayc.topi.cpu.prefetch import LINE_BYTES, exceeds_all_caches, prefetch_next, rows_of_whole_lines
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import partitions_evenly, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import group_norm_by_moments, standardize_by_moments
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_channelwise", "schedule_standardize"]

_SHARE_OF_BLOCKS = 2
"""Divisor of the L2 size: the most bytes of a column block of rows along a strided axis."""
_COLUMN_BYTES, _SHARE_OF_STATISTICS = 12, 2
"""Bytes of statistics kept per column, and the divisor of the L1 size that those of a plane may take (all of L1 where
column blocks would have cache-set conflicts)."""
_SHARE_OF_BUFFER, _SHARE_OF_L2, _SHARE_OF_LLC = 4, 0.75, 8
"""Divisor of the L1 size for the buffer in which results become whole cache lines; the fraction of L2 an image may
take; and the divisor of the last-level cache size, where the next image is read from memory while one is stored."""
_LEAST_BYTES_OF_BLOCKS = 6144
"""Least bytes of an unaligned plane for which column blocks are faster: a dozen of them."""
_SHARE_OF_PIXELS = 6
"""Divisor of the L1 size: the most bytes of pixels taken as one line, of which three results are kept per element."""


@register_schedule("standardize", "cpu", rank=Rank.HEAVY)
def schedule_standardize(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule rows one by one or, along a strided axis, by column blocks; otherwise by moments found in one pass."""
    return schedule_by(_STANDARDIZE, RowFacts(outs, anchor, target, tuple(anchor.attrs["axes"])))


_SEVERAL = Refused("a dynamic shape, several results, or no centred norm")


def _has_moments(rows: RowFacts) -> bool:
    """True if rows may be standardised by moments."""
    return rows.is_static and rows.has_one_result and rows.anchor.attrs["centred"]


def _along_memory(rows: RowFacts) -> te.Schedule | Refused:
    if "axis" not in rows.anchor.attrs or not rows.are_along:
        return Refused("rows are not the last dimensions")
    if _has_moments(rows) and rows.exceed_caches:
        return Refused(f"no cache holds a row of {rows.row_bytes} bytes for a second pass")
    return schedule_rowwise(rows.outs, rows.anchor, rows.target)


def _image_by_image(rows: RowFacts) -> te.Schedule | Refused:
    if not _has_moments(rows):
        return _SEVERAL
    if rows.are_along or rows.axes[0] == 0 or len(rows.axes) > 1:
        return Refused("the norm is not over one dimension between others")
    small = _are_small_images(rows)
    return _schedule_images(rows) if small else small


def _column_blocks(rows: RowFacts) -> te.Schedule | Refused:
    if len(rows.axes) > 1 or rows.are_along:
        return Refused("the norm is over several dimensions, or over the last one")
    block, room = rows.length * LINE_BYTES, rows.target.cache_bytes.l2 // _SHARE_OF_BLOCKS
    if _has_moments(rows) and block > room:
        return Refused(f"a block of a cache line of each row, {block} bytes, exceeds {room} bytes of L2")
    return schedule_strided_axis(rows)


def _by_moments(rows: RowFacts) -> te.Schedule | Refused:
    if not _has_moments(rows):
        return _SEVERAL
    attrs, moments = rows.anchor.attrs, moments_of(rows.elements, rows.axes, rows.target, "standardize")
    norm = standardize_by_moments(moments, attrs["epsilon"], attrs["margin"])
    by_rows = rows.are_along and not rows.exceed_caches and bool(rows.others)
    return schedule_by_moments(rows, moments, norm, by_rows=by_rows)


_STANDARDIZE: tuple[Candidate[RowFacts], ...] = (
    ("row by row", _along_memory), ("image by image", _image_by_image), ("column blocks", _column_blocks),
    ("moments", _by_moments), ("stage by stage", stage_by_stage),
)  # fmt: skip


def _are_small_images(rows: RowFacts) -> Serves | Refused:
    """True if all cores get whole images of small planes, and the caches hold one image but not all.

    Planes that are small, or not whole cache lines, are slow to read by column blocks: the hardware prefetcher finds no
    stream, and results can't use non-temporal stores. An image is contiguous. Stages in front are recomputed in each
    pass, so none may be expensive.
    """
    out, target, (axis,) = rows.out, rows.target, rows.axes
    columns, l2, images = Columns(out, axis, target), target.cache_bytes.l2, constant_size(out.shape[:axis])
    image = columns.rows * columns.row_bytes
    room = max(_SHARE_OF_L2 * l2, target.cache_bytes.l3 // _SHARE_OF_LLC if exceeds_all_caches(out, target) else 0)
    share = 1 if columns.have_set_conflicts else _SHARE_OF_STATISTICS
    small = columns.count * _COLUMN_BYTES <= target.cache_bytes.l1 // share and image <= room
    if not small:
        return Refused(f"statistics of {columns.count} columns exceed L1, or {image} bytes of an image {room:.0f}")
    if images * image <= l2:
        return Refused("L2 holds all images")
    if not partitions_evenly(images, target.num_cores):
        return Refused(f"{images} images are no even shares of {target.num_cores} cores")
    large = columns.row_bytes >= _LEAST_BYTES_OF_BLOCKS
    if large and not columns.are_whole_lines and is_worth_copying(rows):
        return Refused("planes are large, and column blocks of them fit into L2")
    return serves_if(not rows.kept(in_l1=False), "a stage in front is too expensive to be computed in each pass")


def _schedule_images(rows: RowFacts) -> te.Schedule:
    """Compute the moments of an image's columns in one pass; standardise in a second one, which hits the cache."""
    s, x, anchor, target, (axis,) = rows.create_schedule(), rows.elements, rows.anchor, rows.target, rows.axes
    sizes = [constant_size([d]) for d in x.shape[axis + 1 :]]
    shape = (*x.shape[: axis + 1], constant_size(sizes))
    flat = te.compute(shape, lambda *i: x(*i[:-1], *unravel_index(i[-1], sizes)), name="flat")
    moments = Moments(flat, {axis: x.shape[axis]}, "standardize")
    norm = standardize_by_moments(moments, anchor.attrs["epsilon"], anchor.attrs["margin"])
    in_shape = lambda *i: norm(*i[: axis + 1], ravel_index(i[axis + 1 :], sizes))  # noqa: E731
    s.recompute(rows.result, te.compute(x.shape, in_shape, name=anchor.name))
    out = s.outputs[0].output(0)
    before = inline_others(s, out, norm.op)
    image, vectors, each = _by_whole_lines(s, out, axis, target)
    prefetched = prefetch_next(s, out, vectors, constant_size(shape[axis:]), each, target)
    parallel(s, out, image, rows.work, vector_lanes(target))
    schedule_moments(s, before, moments, target, (out, image), prefetched=prefetched)
    return s


def _by_whole_lines(s: te.Schedule, out: te.Tensor, axis: int, target: Target) -> tuple[te.IterVar, te.IterVar, int]:
    """Store `out` by whole cache lines where images consist of them, as non-temporal stores need.

    Planes that are not whole lines are packed in L1, a few together. Returns the loop over images, the one over
    vectors, and the elements that it stores per iteration.
    """
    lanes, nbytes = vector_lanes(target), out.dtype.nbytes
    columns, channels = constant_size(out.shape[axis + 1 :]), constant_size(out.shape[axis : axis + 1])
    *lead, channel = s[out].op.axis[: axis + 1]
    rest = s[out].op.axis[axis + 1 :]
    cached = not exceeds_all_caches(out, target)
    if cached or Columns(out, axis, target).are_whole_lines or not Columns(out, axis - 1, target).are_whole_lines:
        image = s[out].fuse(*lead)
        vectors = vectorize_elements(s, out, s[out].fuse(*rest), columns, lanes)
        return image, vectors, elements_per_step(columns, lanes)
    local, image, line = s.cache_write(out, "local"), s[out].fuse(*lead), LINE_BYTES // nbytes
    least = rows_of_whole_lines(columns * nbytes)
    most = max(target.cache_bytes.l1 // _SHARE_OF_BUFFER // (columns * nbytes) // least, 1) * least
    together = max(n for n in range(least, most + 1, least) if channels % n == 0)
    chunk, within = s[out].split(channel, factor=together)
    vectors, vector = s[out].split(s[out].fuse(within, *rest), factor=max(lanes, line))
    s[out].vectorize(vector)
    s[local].compute_at(s[out], chunk)
    vectorize_elements(s, local, s[local].fuse(*s[local].op.axis[axis + 1 :]), columns, lanes)
    return image, vectors, max(lanes, line)


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
    return _schedule_lines(rows, by_rows) if rows.is_static else _by_moments_of_channels(rows, by_rows)


def _channels_by_moments(rows: RowFacts) -> te.Schedule | Refused:
    if not rows.is_static or not rows.exceed_private_caches:
        return Refused(f"a dynamic shape, or a core's caches hold a row of {rows.row_bytes} bytes for a second pass")
    note("moments", "of parts" if rows.exceed_caches else "row by row")
    return _by_moments_of_channels(rows, not rows.exceed_caches)


def _channel_by_channel(rows: RowFacts) -> te.Schedule:
    s, out, target = rows.create_schedule(), rows.out, rows.target
    before = inline_others(s, out, rows.anchor)
    _, _, *rest = s[out].op.axis
    row = loop_over_rows(s, out, rows)
    vectors, each = vectorize_rows(s, out, rest, target)
    statistics_at(s, before, out, row, rows)
    prefetch_next(s, out, vectors, rows.length, each, target)
    return s


_CHANNELWISE: tuple[Candidate[RowFacts], ...] = (
    ("stage by stage", _other_channels), ("moments of images", _channels_last), ("moments", _channels_by_moments),
    ("row by row", _channel_by_channel),
)  # fmt: skip


def _parameters(rows: RowFacts) -> tuple[te.Tensor, te.Tensor]:
    """The scale and the shift, which may be one tensor."""
    parameters = [t for t in rows.anchor.input_tensors if len(t.shape) == 1]
    return parameters[0], parameters[-1]


def _by_moments_of_channels(rows: RowFacts, by_rows: bool) -> te.Schedule:
    attrs, moments = rows.anchor.attrs, moments_of(rows.elements, rows.axes, rows.target, "group_norm")
    norm = group_norm_by_moments(moments, *_parameters(rows), int(attrs["axis"]), rows.group, attrs["epsilon"])
    return schedule_by_moments(rows, moments, norm, by_rows=by_rows)


def _schedule_lines(rows: RowFacts, by_rows: bool) -> te.Schedule:
    """Channels in the last dimension: an image is split into lines, each the channels of a few consecutive pixels."""
    s, x, anchor, target = rows.create_schedule(), rows.elements, rows.anchor, rows.target
    images, *sizes = [constant_size([d]) for d in x.shape]
    pixels = _pixels_per_line(sizes, target)
    line = max(pixels * sizes[-1], 1)
    shape = (images, constant_size(sizes) // line, line)
    flat = te.compute(shape, lambda b, p, c: x(b, *unravel_index(p * line + c, sizes)), name="lines", tag="injective")
    moments = moments_of(flat, (1,), target, "group_norm")
    norm = group_norm_by_moments(moments, *_parameters(rows), 2, rows.group, anchor.attrs["epsilon"], pixels)

    def in_shape(*i: Any) -> PrimExpr:
        at = ravel_index(i[1:], sizes)
        return norm(i[0], at // line, at % line)

    s.recompute(rows.result, te.compute(x.shape, in_shape, name=anchor.name))
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    before = inline_others(s, out, norm.op)
    image, *rest = s[out].op.axis
    each, within = s[out].split(s[out].fuse(*rest), factor=line)
    vectors = vectorize_elements(s, out, within, line, lanes)
    if by_rows:
        prefetched = prefetch_next(s, out, vectors, constant_size(sizes), elements_per_step(line, lanes), target)
        parallel(s, out, image, rows.work, lanes)
        schedule_moments(s, before, moments, target, (out, image), prefetched=prefetched)
    else:
        schedule_moments(s, before, moments, target)
        parallel_outer(s, out, [image, each], rows.work, target)
    return s


def _pixels_per_line(sizes: Sequence[int], target: Target) -> int:
    """Pixels of an image of `sizes` that fill whole vectors, preferably two; 1 where no such number fits."""
    pixels, channels, lanes = constant_size(sizes[:-1]), sizes[-1], vector_lanes(target)
    for unit in (2 * lanes, lanes):
        each = unit // gcd(channels, unit)
        if pixels % each == 0 and each * channels * 4 <= target.cache_bytes.l1 // _SHARE_OF_PIXELS:
            return each
    return 1
