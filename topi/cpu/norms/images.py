"""Standardisation over channels of small planes on CPUs, image by image, while the caches hold one.

Planes that are small, or not whole cache lines, are slow to read by column blocks: the hardware prefetcher finds no
stream, and results can't use non-temporal stores. An image is contiguous.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, serves_if
from relayc.te.tir import PrimExpr
from relayc.topi.cpu.column_blocks import Columns
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.norms.copied_blocks import is_worth_copying
from relayc.topi.cpu.norms.facts import RowFacts, elements_of
from relayc.topi.cpu.norms.moments import schedule_moments_at
from relayc.topi.cpu.norms.row_statistics import estimated_work, inline_others
from relayc.topi.cpu.prefetch import LINE_BYTES, exceeds_all_caches, prefetch_next
from relayc.topi.cpu.tiling import partitions_evenly, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import standardize_by_moments
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["are_small_images", "schedule_images"]

_COLUMN_BYTES, _SHARE_OF_STATISTICS = 12, 2
"""Bytes of statistics kept per column, and the divisor of the L1 size that those of a plane may take (all of L1 where
column blocks would have cache-set conflicts)."""
_SHARE_OF_L1, _SHARE_OF_L2, _SHARE_OF_LLC = 4, 0.75, 8
"""Divisor of the L1 size for the buffer in which results become whole cache lines; the fraction of L2 an image may
take; and the divisor of the last-level cache size, where the next image is read from memory while one is stored."""
_LEAST_BYTES_OF_BLOCKS = 6144
"""Least bytes of an unaligned plane for which column blocks are faster: a dozen of them."""


def are_small_images(rows: RowFacts) -> Serves | Refused:
    """True if all cores get whole images of small planes, and the caches hold one image but not all.

    Stages in front are recomputed in each pass, so none may be expensive.
    """
    out, target, (axis,) = rows.out, rows.target, rows.axes
    columns, l2, images = Columns(out, axis, target), target.cache_bytes.l2, constant_size(out.shape[:axis])
    image = columns.rows * columns.row_bytes
    far = exceeds_all_caches(images * image, target)
    room = max(_SHARE_OF_L2 * l2, target.cache_bytes.l3 // _SHARE_OF_LLC if far else 0)
    share = 1 if columns.have_set_conflicts else _SHARE_OF_STATISTICS
    small = columns.count * _COLUMN_BYTES <= target.cache_bytes.l1 // share and image <= room
    if not rows.has_one_result or not small:
        return Refused(f"statistics of {columns.count} columns exceed L1, or {image} bytes of an image {room:.0f}")
    if images * image <= l2:
        return Refused("L2 holds all images")
    if not partitions_evenly(images, target.num_cores):
        return Refused(f"{images} images are no even shares of {target.num_cores} cores")
    large = columns.row_bytes >= _LEAST_BYTES_OF_BLOCKS
    if large and not columns.are_whole_lines and is_worth_copying(rows):
        return Refused("planes are large, and column blocks of them fit into L2")
    return serves_if(not rows.kept(in_l1=False), "a stage in front is too expensive to be computed in each pass")


def schedule_images(rows: RowFacts) -> te.Schedule:
    """Compute the moments of an image's columns in one pass; standardise in a second one, which hits the cache."""
    s, result, anchor, target, (axis,) = rows.create_schedule(), rows.result, rows.anchor, rows.target, rows.axes
    sizes = [constant_size([d]) for d in result.shape[axis + 1 :]]
    x = elements_of(anchor)
    shape = (*x.shape[: axis + 1], constant_size(sizes))
    flat = te.compute(shape, lambda *i: x(*i[:-1], *unravel_index(i[-1], sizes)), name="flat")
    moments = Moments(flat, {axis: x.shape[axis]}, "standardize")
    norm = standardize_by_moments(moments, anchor.attrs["epsilon"], anchor.attrs["margin"])

    def in_shape(*i: Any) -> PrimExpr:
        return norm(*i[: axis + 1], ravel_index(i[axis + 1 :], sizes))

    s.recompute(result, te.compute(result.shape, in_shape, name=anchor.name))
    out = s.outputs[0].output(0)
    before = inline_others(s, out, norm.op)
    image, vectors, each = _by_whole_lines(s, out, axis, target)
    prefetched = prefetch_next(s, out, vectors, constant_size(shape[axis:]), each, target)
    parallel(s, out, image, estimated_work(out), vector_lanes(target))
    schedule_moments_at(s, before, moments, out, image, target, prefetched=prefetched)
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
    cached = not exceeds_all_caches(constant_size(out.shape) * nbytes, target)
    if cached or Columns(out, axis, target).are_whole_lines or not Columns(out, axis - 1, target).are_whole_lines:
        image = s[out].fuse(*lead)
        vectors = vectorize_elements(s, out, s[out].fuse(*rest), columns, lanes)
        return image, vectors, elements_per_step(columns, lanes)
    local = s.cache_write(out, "local")
    assert isinstance(local, te.Tensor)
    image, line = s[out].fuse(*lead), LINE_BYTES // nbytes
    least = LINE_BYTES // gcd(columns * nbytes, LINE_BYTES)
    most = max(target.cache_bytes.l1 // _SHARE_OF_L1 // (columns * nbytes) // least, 1) * least
    together = max(n for n in range(least, most + 1, least) if channels % n == 0)
    chunk, within = s[out].split(channel, factor=together)
    vectors, vector = s[out].split(s[out].fuse(within, *rest), factor=max(lanes, line))
    s[out].vectorize(vector)
    s[local].compute_at(s[out], chunk)
    vectorize_elements(s, local, s[local].fuse(*s[local].op.axis[axis + 1 :]), columns, lanes)
    return image, vectors, max(lanes, line)
