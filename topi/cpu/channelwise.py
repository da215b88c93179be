"""Instance and group normalisation on CPUs: channels or groups of them, standardised over the other dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel
from topi.cpu.injective import vectorize_elements
from topi.cpu.moments import (
    exceeds_caches,
    exceeds_near_caches,
    part_sizes,
    schedule_by_moments,
    schedule_rows_by_moments,
)
from topi.cpu.row_statistics import inline_others, statistics_at, work_behind
from topi.cpu.stagewise import schedule_stagewise
from topi.cpu.tiling import largest_share, vector_lanes
from topi.groups import constant_size, extent_of
from topi.moments import Moments
from topi.nn.norm import group_norm_by_moments
from topi.registry import Rank, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_channelwise"]

_MOST_OF_A_CORE = 1.1
"""Of its share, what a core may have where whole images are shared: as much is gained by finding them in the caches."""


@register_schedule(["instance_norm", "group_norm"], "cpu", rank=Rank.HEAVY)
def schedule_channelwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Channels standardised over the other dimensions: a row is a channel or group where they come first.

    Where channels are the last dimension, or no cache holds a row, the moments of channels are found in one pass over
    the image, those of groups are made of them, and a second pass standardises: image by image where there are enough
    for all cores, so that each is found in the caches again.
    """
    axis = int(anchor.attrs["axis"])
    if len(outs) > 1 or axis not in (1, len(anchor.axis) - 1):
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([outs[0].op])
    shape, group_size = anchor.output(0).shape, anchor.attrs.get("group_size", 1)
    nbytes, known = anchor.output(0).dtype.nbytes, all(isinstance(d, int) for d in shape)
    if axis != 1:
        images, image = constant_size(shape[:1]), constant_size(shape[1:]) * nbytes
        shared = largest_share(images, target.num_cores) * target.num_cores <= _MOST_OF_A_CORE
        return _schedule_by_moments(s, anchor, known and shared and not exceeds_caches(image, images, target), target)
    row = constant_size([group_size, *shape[2:]]) * nbytes
    rows = constant_size(shape[:2]) // group_size
    if known and exceeds_near_caches(row, target):
        return _schedule_by_moments(s, anchor, not exceeds_caches(row, rows, target), target)
    return _schedule_rows(s, anchor, target)


def _schedule_rows(s: te.Schedule, anchor: te.Operation, target: Target) -> te.Schedule:
    lanes, out = vector_lanes(target), s.outputs[0].output(0)
    before = inline_others(s, out, anchor)
    batch, channel, *rest = s[out].op.axis
    inner = [*rest]
    if anchor.tag == "group_norm":
        channel, within = s[out].split(channel, factor=anchor.attrs["group_size"])
        inner.insert(0, within)
    row = s[out].fuse(batch, channel)
    parallel(s, out, row, work_behind(out), lanes)
    vectorize_elements(s, out, s[out].fuse(*rest), constant_size([extent_of(a) for a in rest]), lanes)
    statistics_at(s, before, out, row, 2, lanes)
    return s


def _schedule_by_moments(s: te.Schedule, anchor: te.Operation, by_rows: bool, target: Target) -> te.Schedule:
    x = next(t for t in anchor.input_tensors if tuple(t.shape) == tuple(anchor.output(0).shape))
    parameters = [t for t in anchor.input_tensors if len(t.shape) == 1]  # one tensor may serve as both
    gamma, beta = parameters[0], parameters[-1]
    axis, group_size = int(anchor.attrs["axis"]), int(anchor.attrs.get("group_size", 1))
    others = [a for a in range(1, x.ndim) if a != axis]
    moments = Moments(x, part_sizes(x.shape, x.dtype.nbytes, others, target), "group_norm")
    norm = group_norm_by_moments(moments, gamma, beta, axis, group_size, anchor.attrs["epsilon"])
    if by_rows:
        outer, group = ((0, 1), group_size) if axis == 1 else ((0,), 1)
        return schedule_rows_by_moments(s, anchor.output(0), norm, moments, outer, target, group)
    return schedule_by_moments(s, anchor.output(0), norm, moments, 2 if axis == 1 else axis, target)
