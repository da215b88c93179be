"""Standardisation over any dimensions on CPUs: over the channels of a pixel, or each channel over a batch of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.norms.images import are_small_images, schedule_images
from relayc.topi.cpu.norms.moments import exceeds_caches, part_sizes, schedule_by_moments, schedule_rows_by_moments
from relayc.topi.cpu.norms.row_statistics import elements_of
from relayc.topi.cpu.norms.rows import schedule_rowwise
from relayc.topi.cpu.norms.strided_axis import schedule_strided_axis
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.stagewise import schedule_stagewise
from relayc.topi.groups import constant_size
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import standardize_by_moments
from relayc.topi.registry import Rank, register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_standardize"]

_SHARE_OF_BLOCKS = 2
"""Divisor of the L2 size: the most bytes of a column block of rows along a strided axis."""


@register_schedule("standardize", "cpu", rank=Rank.HEAVY)
def schedule_standardize(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule rows one by one or, along a strided axis, by column blocks; otherwise by moments found in one pass."""
    axes, shape = anchor.attrs["axes"], anchor.output(0).shape
    nbytes, known = anchor.output(0).dtype.nbytes, all(isinstance(d, int) for d in shape)
    along, by_moments = len(shape) - 1 in axes, known and len(outs) == 1 and anchor.attrs["centred"]
    row = constant_size([shape[a] for a in axes]) * nbytes
    rows = constant_size([d for a, d in enumerate(shape) if a not in axes])
    if "axis" in anchor.attrs and along and not (by_moments and exceeds_caches(row, rows, target)):
        return schedule_rowwise(outs, anchor, target)
    block_bytes = constant_size([shape[a] for a in axes]) * LINE_BYTES
    if by_moments and not along and axes[0] > 0 and len(axes) == 1 and are_small_images(outs, anchor, target):
        return schedule_images(outs, anchor, target)
    fits = not by_moments or block_bytes <= target.cache_bytes.l2 // _SHARE_OF_BLOCKS
    if len(axes) == 1 and not along and fits:
        s = te.create_schedule([out.op for out in outs])
        return schedule_strided_axis(s, outs, anchor, target)
    if not by_moments:
        return schedule_stagewise(outs, anchor, target)
    return _schedule_by_moments(outs, anchor, along and not exceeds_caches(row, rows, target), target)


def _schedule_by_moments(
    outs: list[te.Tensor], anchor: te.Operation, by_rows: bool, target: Target
) -> te.Schedule:
    axes, result = anchor.attrs["axes"], anchor.output(0)
    s = te.create_schedule([outs[0].op])
    x = elements_of(anchor)
    moments = Moments(x, part_sizes(x.shape, x.dtype.nbytes, axes, target), "standardize")
    norm = standardize_by_moments(moments, anchor.attrs["epsilon"], anchor.attrs["margin"])
    kept = [a for a in range(x.ndim) if a not in axes]
    if by_rows and kept:
        return schedule_rows_by_moments(s, result, norm, moments, kept, target)
    first = max(kept, default=-1) + 1 if x.ndim - 1 in axes else x.ndim - 1
    return schedule_by_moments(s, result, norm, moments, first, target)
