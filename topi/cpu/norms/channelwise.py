"""Instance and group normalisation on CPUs: channels, or groups of channels, standardised over the other dimensions."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, first_of, note
from relayc.te.tir import PrimExpr
from relayc.topi.cpu.common import parallel, parallel_outer
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import elements_of, exceeds_caches, exceeds_private_caches
from relayc.topi.cpu.norms.moments import (
    part_sizes,
    schedule_by_moments,
    schedule_moments_at,
    schedule_moments_at_root,
    schedule_rows_by_moments,
)
from relayc.topi.cpu.norms.row_statistics import estimated_work, inline_others, statistics_at
from relayc.topi.cpu.prefetch import prefetch_next
from relayc.topi.cpu.stagewise import schedule_stagewise
from relayc.topi.cpu.tiling import partitions_evenly, vector_lanes
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import group_norm_by_moments
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_channelwise"]

_SHARE_OF_L1 = 6
"""Divisor of the L1 size: the most bytes of pixels taken as one line, of which three results are kept per element."""


@register_schedule(["instance_norm", "group_norm"], "cpu", rank=Rank.HEAVY)
def schedule_channelwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Standardise channels over the other dimensions; with channels first a row is a channel or a group.

    Where channels are the last dimension, or no cache holds a row, one pass over the image computes the moments of
    channels, from which those of groups are combined, and a second pass standardises. This goes image by image if
    there are enough images for all cores, so that the second pass reads from the caches.
    """
    axis, shape, nbytes = int(anchor.attrs["axis"]), anchor.output(0).shape, anchor.output(0).dtype.nbytes
    group_size, known = anchor.attrs.get("group_size", 1), all(isinstance(d, int) for d in shape)
    images, rows = constant_size(shape[:1]), constant_size(shape[:2]) // group_size
    image, row = constant_size(shape[1:]) * nbytes, constant_size([group_size, *shape[2:]]) * nbytes

    def stage_by_stage() -> te.Schedule | Refused:
        if len(outs) == 1 and axis in (1, len(anchor.axis) - 1):
            return Refused("one result, with channels first or last")
        return schedule_stagewise(outs, anchor, target)

    def channels_last() -> te.Schedule | Refused:
        if axis == 1:
            return Refused("channels are first")
        by_rows = known and partitions_evenly(images, target.num_cores) and not exceeds_caches(image, images, target)
        note("moments", "image by image" if by_rows else "of parts")
        return _schedule_by_moments(te.create_schedule([outs[0].op]), anchor, by_rows, target)

    def by_moments() -> te.Schedule | Refused:
        if not known or not exceeds_private_caches(row, target):
            return Refused(f"a dynamic shape, or a core's caches hold a row of {row} bytes for a second pass")
        by_rows = not exceeds_caches(row, rows, target)
        note("moments", "row by row" if by_rows else "of parts")
        return _schedule_by_moments(te.create_schedule([outs[0].op]), anchor, by_rows, target)

    return first_of("norm of channels", (
        ("stage by stage", stage_by_stage), ("moments of images", channels_last), ("moments", by_moments),
        ("row by row", lambda: _schedule_rows(te.create_schedule([outs[0].op]), anchor, target)),
    ))  # fmt: skip


def _schedule_rows(s: te.Schedule, anchor: te.Operation, target: Target) -> te.Schedule:
    lanes, out = vector_lanes(target), s.outputs[0].output(0)
    before = inline_others(s, out, anchor)
    batch, channel, *rest = s[out].op.axis
    inner = [*rest]
    if anchor.tag == "group_norm":
        channel, within = s[out].split(channel, factor=anchor.attrs["group_size"])
        inner.insert(0, within)
    row = s[out].fuse(batch, channel)
    parallel(s, out, row, estimated_work(out), lanes)
    vectors, each = vectorize_rows(s, out, rest, target)
    statistics_at(s, before, out, row, 2, lanes)
    length = anchor.attrs.get("group_size", 1) * constant_size([extent_of(a) for a in rest])
    prefetch_next(s, out, vectors, length, each, target)
    return s


def _schedule_by_moments(s: te.Schedule, anchor: te.Operation, by_rows: bool, target: Target) -> te.Schedule:
    x = elements_of(anchor)
    parameters = [t for t in anchor.input_tensors if len(t.shape) == 1]  # one tensor may serve as both
    gamma, beta = parameters[0], parameters[-1]
    axis, group_size = int(anchor.attrs["axis"]), int(anchor.attrs.get("group_size", 1))
    if axis != 1 and all(isinstance(d, int) for d in x.shape):
        return _schedule_lines(s, anchor, x, (gamma, beta), by_rows, target)
    others = [a for a in range(1, x.ndim) if a != axis]
    moments = Moments(x, part_sizes(x.shape, x.dtype.nbytes, others, target), "group_norm")
    norm = group_norm_by_moments(moments, gamma, beta, axis, group_size, anchor.attrs["epsilon"])
    if by_rows:
        return schedule_rows_by_moments(s, anchor.output(0), norm, moments, (0, 1), target, group_size)
    return schedule_by_moments(s, anchor.output(0), norm, moments, 2 if axis == 1 else axis, target)


def _schedule_lines(
    s: te.Schedule, anchor: te.Operation, x: te.Tensor, parameters: tuple[te.Tensor, te.Tensor], by_rows: bool,
    target: Target,
) -> te.Schedule:  # fmt: skip
    """Channels in the last dimension: an image is split into lines, each the channels of a few consecutive pixels."""
    result, group_size = anchor.output(0), int(anchor.attrs.get("group_size", 1))
    images, *sizes = [constant_size([d]) for d in x.shape]
    pixels = _pixels_per_line(sizes, target)
    line = max(pixels * sizes[-1], 1)
    shape = (images, constant_size(sizes) // line, line)
    flat = te.compute(shape, lambda b, p, c: x(b, *unravel_index(p * line + c, sizes)), name="lines", tag="injective")
    moments = Moments(flat, part_sizes(shape, x.dtype.nbytes, (1,), target), "group_norm")
    norm = group_norm_by_moments(moments, *parameters, 2, group_size, anchor.attrs["epsilon"], pixels)

    def in_shape(*i: Any) -> PrimExpr:
        at = ravel_index(i[1:], sizes)
        return norm(i[0], at // line, at % line)

    s.recompute(result, te.compute(result.shape, in_shape, name=anchor.name))
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    before = inline_others(s, out, norm.op)
    image, *rest = s[out].op.axis
    each, within = s[out].split(s[out].fuse(*rest), factor=line)
    vectors = vectorize_elements(s, out, within, line, lanes)
    if by_rows:
        prefetched = prefetch_next(s, out, vectors, constant_size(sizes), elements_per_step(line, lanes), target)
        parallel(s, out, image, estimated_work(out), lanes)
        schedule_moments_at(s, before, moments, out, image, target, prefetched=prefetched)
    else:
        schedule_moments_at_root(s, before, moments, target)
        parallel_outer(s, out, [image, each], estimated_work(out), target)
    return s


def _pixels_per_line(sizes: Sequence[int], target: Target) -> int:
    """Pixels of an image of `sizes` that fill whole vectors, preferably two; 1 where no such number fits."""
    pixels, channels, lanes = constant_size(sizes[:-1]), sizes[-1], vector_lanes(target)
    for unit in (2 * lanes, lanes):
        each = unit // gcd(channels, unit)
        if pixels % each == 0 and each * channels * 4 <= target.cache_bytes.l1 // _SHARE_OF_L1:
            return each
    return 1
