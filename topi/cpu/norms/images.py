"""Normalisation over one dimension between others on CPUs, image by image: moments of all columns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, serves_if
from relayc.topi.cpu.column_blocks import Columns
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.norms.moments import Stored, has_moments, schedule_by_moments
from relayc.topi.cpu.norms.strided_axis import is_worth_copying
from relayc.topi.cpu.prefetch import LINE_BYTES, exceeds_all_caches, rows_of_whole_lines
from relayc.topi.cpu.tiling import partitions_evenly, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import standardize_by_moments
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.topi.cpu.norms.facts import RowFacts

__all__ = ["image_by_image"]

_COLUMN_BYTES, _SHARE_OF_STATISTICS = 12, 2
"""Bytes of statistics kept per column, and the divisor of the L1 size that those of a plane may take (all of L1 where
column blocks would have cache-set conflicts)."""
_SHARE_OF_BUFFER, _SHARE_OF_L2, _SHARE_OF_LLC = 4, 0.75, 8
"""Divisor of the L1 size for the buffer in which results become whole cache lines; the fraction of L2 an image may
take; and the divisor of the last-level cache size, where the next image is read from memory while one is stored."""
_LEAST_BYTES_OF_BLOCKS = 6144
"""Least bytes of an unaligned plane for which column blocks are faster: a dozen of them."""


def image_by_image(rows: RowFacts) -> te.Schedule | Refused:
    """A candidate: the moments of an image's columns in one pass; a second one, which hits the cache, standardises."""
    serves = _are_small_images(rows)
    if not serves:
        return serves
    x, anchor, (axis,) = rows.elements, rows.anchor, rows.axes
    sizes = [constant_size([d]) for d in x.shape[axis + 1 :]]
    shape = (*x.shape[: axis + 1], constant_size(sizes))
    flat = te.compute(shape, lambda *i: x(*i[:-1], *unravel_index(i[-1], sizes)), name="flat")
    moments = Moments(flat, {axis: x.shape[axis]}, "standardize")
    norm = standardize_by_moments(moments, anchor.attrs["epsilon"], anchor.attrs["margin"])
    in_shape = lambda *i: norm(*i[: axis + 1], ravel_index(i[axis + 1 :], sizes))  # noqa: E731
    result = te.compute(x.shape, in_shape, name=anchor.name)
    return schedule_by_moments(rows, moments, norm, lambda s, out: _by_whole_lines(s, out, rows), result)


def _are_small_images(rows: RowFacts) -> Serves | Refused:
    """True if all cores get whole images of small planes, and the caches hold one image but not all.

    Planes that are small, or not whole cache lines, are slow to read by column blocks: the hardware prefetcher finds no
    stream, and results can't use non-temporal stores. An image is contiguous. Stages in front are recomputed in each
    pass, so none may be expensive.
    """
    serves = has_moments(rows)
    if not serves:
        return serves
    if rows.are_along or rows.axes[0] == 0 or len(rows.axes) > 1:
        return Refused("the norm is not over one dimension between others")
    out, target, (axis,) = rows.out, rows.target, rows.axes
    columns, l2, images = rows.columns, target.cache_bytes.l2, constant_size(out.shape[:axis])
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
    return serves_if(not rows.kept, "a stage in front is too expensive to be computed in each pass")


def _by_whole_lines(s: te.Schedule, out: te.Tensor, rows: RowFacts) -> Stored:
    """Store `out` image by image, by whole cache lines where images consist of them, as non-temporal stores need.

    Planes that are not whole lines are packed in L1, a few together.
    """
    (axis,), target = rows.axes, rows.target
    lanes, nbytes = vector_lanes(target), out.dtype.nbytes
    columns, channels = constant_size(out.shape[axis + 1 :]), constant_size(out.shape[axis : axis + 1])
    *lead, channel = s[out].op.axis[: axis + 1]
    rest = s[out].op.axis[axis + 1 :]
    cached = not exceeds_all_caches(out, target)
    if cached or rows.columns.are_whole_lines or not Columns(out, axis - 1, target).are_whole_lines:
        image = s[out].fuse(*lead)
        parallel(s, out, image, rows.work, lanes)
        vectors = vectorize_elements(s, out, s[out].fuse(*rest), columns, lanes)
        return image, vectors, elements_per_step(columns, lanes)
    local, image, line = s.cache_write(out, "local"), s[out].fuse(*lead), LINE_BYTES // nbytes
    parallel(s, out, image, rows.work, lanes)
    least = rows_of_whole_lines(columns * nbytes)
    most = max(target.cache_bytes.l1 // _SHARE_OF_BUFFER // (columns * nbytes) // least, 1) * least
    together = max(n for n in range(least, most + 1, least) if channels % n == 0)
    chunk, within = s[out].split(channel, factor=together)
    vectors, vector = s[out].split(s[out].fuse(within, *rest), factor=max(lanes, line))
    s[out].vectorize(vector)
    s[local].compute_at(s[out], chunk)
    vectorize_elements(s, local, s[local].fuse(*s[local].op.axis[axis + 1 :]), columns, lanes)
    return image, vectors, max(lanes, line)
