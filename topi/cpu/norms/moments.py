"""Normalisations by moments on CPUs: one pass over memory for means and variances by parts, one that normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, serves_if
from relayc.topi.cpu.column_blocks import Columns
from relayc.topi.cpu.common import attach, parallel, parallel_outer
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import RowFacts, inline_all_but, loop_over_rows
from relayc.topi.cpu.norms.strided_axis import is_worth_copying
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches, prefetch_next, rows_of_whole_lines
from relayc.topi.cpu.reductions.lines import add_up_adjacent, add_up_groups, add_up_lines
from relayc.topi.cpu.reductions.parts import part_sizes, schedule_parts
from relayc.topi.cpu.reductions.reduction import reduce_across
from relayc.topi.cpu.tiling import partitions_evenly, vector_lanes
from relayc.topi.groups import constant_size, extent_of, uses_reduction
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import group_norm_by_moments, layer_norm_by_moments, standardize_by_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Stored", "by_moments", "by_moments_of_parts", "has_moments", "image_by_image", "moments_of", "normalized",
    "schedule_by_moments",
]  # fmt: skip

Stored = tuple[te.IterVar | None, te.IterVar, int]
"""The loop over rows that are normalised while a cache holds them, or None; the loop over vectors of results; and the
elements of the next row that each of its iterations prefetches, 0 for none."""

_COLUMN_BYTES, _SHARE_OF_STATISTICS = 12, 2
"""Bytes of statistics kept per column, and the divisor of the L1 size that those of a plane may take (all of L1 where
column blocks would have cache-set conflicts)."""
_SHARE_OF_BUFFER, _SHARE_OF_L2, _SHARE_OF_LLC = 4, 0.75, 8
"""Divisor of the L1 size for the buffer in which results become whole cache lines; the fraction of L2 an image may
take; and the divisor of the last-level cache size, where the next image is read from memory while one is stored."""
_LEAST_BYTES_OF_BLOCKS = 6144
"""Least bytes of an unaligned plane for which column blocks are faster: a dozen of them."""


def has_moments(rows: RowFacts) -> Serves | Refused:
    """Whether this is a norm by means and variances, which may be found as moments."""
    attrs = rows.anchor.attrs
    centred = rows.anchor.tag == "layer_norm" or attrs.get("centred", False)
    return serves_if(rows.is_static and rows.has_one_result and centred, "a dynamic shape, several results, or no mean")


def by_moments(rows: RowFacts) -> te.Schedule | Refused:
    """A candidate: the moments of parts of rows, where no cache holds a row or rows are not contiguous."""
    serves = has_moments(rows)
    if not serves:
        return serves
    if rows.are_trailing and not rows.exceed_caches:
        return Refused(f"caches hold a row of {rows.row_bytes} bytes for a second pass, and all cores have rows")
    by_rows = rows.are_along and not rows.exceed_caches and bool(rows.others)
    return by_moments_of_parts(rows, by_rows)


def image_by_image(rows: RowFacts) -> te.Schedule | Refused:
    """A candidate: the moments of an image's columns in one pass; a second one, which hits the cache, standardises.

    For cores that get whole images of small planes, where the caches hold one image but not all. Planes that are small,
    or not whole cache lines, are slow to read by column blocks: the hardware prefetcher finds no stream, and results
    can't use non-temporal stores. An image is contiguous. Stages in front are recomputed in each pass, so none may be
    expensive.
    """
    serves = has_moments(rows)
    if not serves:
        return serves
    if rows.axes[0] == 0 or not rows.columns_are_one_run:
        return Refused("the norm is not over one dimension between others")
    out, target, (axis,) = rows.out, rows.target, rows.axes
    columns, l2, images = rows.columns, target.cache_bytes.l2, constant_size(out.shape[:axis])
    image = columns.rows * columns.row_bytes
    room = max(_SHARE_OF_L2 * l2, target.cache_bytes.l3 // _SHARE_OF_LLC if is_beyond_caches(out, target) else 0)
    share = 1 if columns.have_set_conflicts else _SHARE_OF_STATISTICS
    if columns.count * _COLUMN_BYTES > target.cache_bytes.l1 // share or image > room:
        return Refused(f"statistics of {columns.count} columns exceed L1, or {image} bytes of an image {room:.0f}")
    if images * image <= l2:
        return Refused("L2 holds all images")
    if not partitions_evenly(images, target.num_cores):
        return Refused(f"{images} images are no even shares of {target.num_cores} cores")
    large = columns.row_bytes >= _LEAST_BYTES_OF_BLOCKS
    if large and not columns.are_whole_lines and is_worth_copying(rows):
        return Refused("planes are large, and column blocks of them fit into L2")
    if rows.kept:
        return Refused("a stage in front is too expensive to be computed in each pass")
    moments = Moments(rows.elements, {axis: rows.result.shape[axis]}, rows.anchor.tag)
    return schedule_by_moments(rows, moments, normalized(rows, moments), lambda s, out: _by_whole_lines(s, out, rows))


def _by_whole_lines(s: te.Schedule, out: te.Tensor, rows: RowFacts) -> Stored:
    """Store `out` image by image, by whole cache lines where images consist of them, as non-temporal stores need.

    Planes that are not whole lines are packed in L1, a few together.
    """
    (axis,), target = rows.axes, rows.target
    lanes, nbytes = vector_lanes(target), out.dtype.nbytes
    columns, channels = constant_size(out.shape[axis + 1 :]), constant_size(out.shape[axis : axis + 1])
    *lead, channel = s[out].op.axis[: axis + 1]
    rest = s[out].op.axis[axis + 1 :]
    cached = not is_beyond_caches(out, target)
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


def by_moments_of_parts(rows: RowFacts, by_rows: bool) -> te.Schedule:
    """A normalisation by the moments of parts of rows, in the order of memory."""
    moments = moments_of(rows, rows.elements, rows.axes)
    return schedule_by_moments(
        rows, moments, normalized(rows, moments, rows.anchor.attrs.get("axis", 0)),
        lambda s, out: _store_rows(s, out, rows, by_rows),
    )  # fmt: skip


def moments_of(rows: RowFacts, x: te.Tensor, axes: Sequence[int]) -> Moments:
    """The moments of `x`, a view of the elements, over dimensions, by parts that fit a cache."""
    return Moments(x, part_sizes(x.shape, x.dtype.nbytes, axes, rows.target), rows.anchor.tag)


def normalized(rows: RowFacts, moments: Moments, channel: int = 0, pixels: int = 1) -> te.Tensor:
    """The normalisation of what `moments` are of; for the last two see `group_norm_by_moments`."""
    anchor, attrs = rows.anchor, rows.anchor.attrs
    if anchor.tag == "standardize":
        return standardize_by_moments(moments, attrs["epsilon"], attrs["margin"])
    _, *parameters = [t for t in anchor.input_tensors if not uses_reduction(t.op)]
    gamma, beta = parameters[0], parameters[-1]  # one tensor may serve as both
    if anchor.tag == "layer_norm":
        shift = beta if attrs["shifted"] else None
        return layer_norm_by_moments(moments, gamma, shift, rows.axes[0], attrs["epsilon"])
    return group_norm_by_moments(moments, gamma, beta, channel, rows.group, attrs["epsilon"], pixels)


def _store_rows(s: te.Schedule, out: te.Tensor, rows: RowFacts, by_rows: bool) -> Stored:
    """Results in the order of memory: `by_rows`, or with the dimensions behind those of rows fused into one, so that
    non-temporal stores begin with whole cache lines."""
    axes, first = list(s[out].op.axis), max(rows.others, default=-1) + 1
    if by_rows:
        row = loop_over_rows(s, out, rows)
        vectors, _ = vectorize_rows(s, out, axes[first:], rows.target)
        return row, vectors, 0
    outer = axes[: first if rows.are_along else -1]
    vectors, _ = vectorize_rows(s, out, axes[len(outer) :], rows.target)
    parallel_outer(s, out, [*outer, vectors], rows.work, rows.target)
    return None, vectors, 0


def schedule_by_moments(
    rows: RowFacts, moments: Moments, norm: te.Tensor, store: Callable[[te.Schedule, te.Tensor], Stored],
    result: te.Tensor | None = None,
) -> te.Schedule:  # fmt: skip
    """Compute a normalisation as `norm`: one pass for its `moments`, and one that normalises, which `store` schedules.

    The statistics made from the moments are computed before the normalisation, or at its loop over rows. `result`: the
    normalisation in the shape of the anchor, where that is another than of `norm`.
    """
    s, target = rows.create_schedule(), rows.target
    s.recompute(rows.result, norm if result is None else result)
    out = s.outputs[0].output(0)
    statistics = rows.of(out, s.current(norm).op).statistics
    inline_all_but(s, out, statistics)
    row, vectors, each = store(s, out)
    length, lanes = constant_size(moments.x.shape[min(moments.sizes) :]), vector_lanes(target)
    prefetched = each > 0 and prefetch_next(s, out, vectors, length, each, target)
    schedule_parts(s, moments, target, None if row is None else (out, row), prefetched)
    along = moments.x.ndim - 1 in moments.sizes
    for op in [op for op in statistics if s[op].attach == "root"]:
        statistic, along_memory = op.output(0), op.attrs.get("reduces_last_axis", False)
        if row is not None:
            s[statistic].compute_at(s[out], row)
        if op.num_outputs > 1 or not op.axis or ((along_memory or along) and row is not None):
            continue
        if along_memory:
            add_up_adjacent(s, statistic, lanes)
        elif not op.reduce_axis:
            vectorize_elements(s, statistic, op.axis[-1], extent_of(op.axis[-1]), lanes)
        elif row is not None:
            add_up_lines(s, statistic, lanes)
        elif isinstance(extent_of(op.axis[-1]), int) and not all(isinstance(extent_of(a), int) for a in op.reduce_axis):
            _combine_parts(s, statistic, lanes)
        else:
            reduce_across(s, statistic, [statistic], target)
    return s


def _combine_parts(s: te.Schedule, statistic: te.Tensor, lanes: int) -> None:
    """Compute a sum over a dynamic number of parts, which takes little time beside that of the parts, in little code.
    """
    total = s.cache_write(statistic, "local")
    *outer, columns = s[statistic].op.axis
    vectorize_elements(s, statistic, columns, extent_of(columns), lanes)
    row = s[statistic].fuse(*outer)
    s[statistic].parallel(row)
    attach(s, total, statistic, row)
    add_up_groups(s, total, lanes)
