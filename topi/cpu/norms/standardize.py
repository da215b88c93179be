"""Standardisation over any dimensions on CPUs: over the channels of a pixel, or each channel over a batch of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, first_of
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
    far = exceeds_caches(row, constant_size([d for a, d in enumerate(shape) if a not in axes]), target)
    several = Refused("a dynamic shape, several results, or no centred norm")

    def row_by_row() -> te.Schedule | Refused:
        if "axis" not in anchor.attrs or not along:
            return Refused("rows are not the last dimensions")
        if by_moments and far:
            return Refused(f"no cache holds a row of {row} bytes for a second pass")
        return schedule_rowwise(outs, anchor, target)

    def image_by_image() -> te.Schedule | Refused:
        if not by_moments:
            return several
        if along or axes[0] == 0 or len(axes) > 1:
            return Refused("the norm is not over one dimension between others")
        small = are_small_images(outs, anchor, target)
        return schedule_images(outs, anchor, target) if small else small

    def column_blocks() -> te.Schedule | Refused:
        if len(axes) > 1 or along:
            return Refused("the norm is over several dimensions, or over the last one")
        block, room = row // nbytes * LINE_BYTES, target.cache_bytes.l2 // _SHARE_OF_BLOCKS
        if by_moments and block > room:
            return Refused(f"a block of a cache line of each row, {block} bytes, exceeds {room} bytes of L2")
        return schedule_strided_axis(te.create_schedule([out.op for out in outs]), outs, anchor, target)

    return first_of("standardisation", (
        ("row by row", row_by_row), ("image by image", image_by_image), ("column blocks", column_blocks),
        ("moments", lambda: _schedule_by_moments(outs, anchor, along and not far, target) if by_moments else several),
        ("stage by stage", lambda: schedule_stagewise(outs, anchor, target)),
    ))  # fmt: skip


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
