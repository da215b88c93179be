"""Standardisation over any dimensions on CPUs: over the channels of a pixel, or each channel over a batch of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.candidates import Candidate, schedule_by
from relayc.topi.cpu.norms.facts import RowFacts, elements_of
from relayc.topi.cpu.norms.images import are_small_images, schedule_images
from relayc.topi.cpu.norms.moments import part_sizes, schedule_by_moments, schedule_rows_by_moments
from relayc.topi.cpu.norms.rows import schedule_rowwise
from relayc.topi.cpu.norms.strided_axis import schedule_strided_axis
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.stagewise import stage_by_stage
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
    return schedule_by(_CANDIDATES, RowFacts(outs, anchor, target, tuple(anchor.attrs["axes"])))


_SEVERAL = Refused("a dynamic shape, several results, or no centred norm")


def _has_moments(rows: RowFacts) -> bool:
    """True if rows may be standardised by moments."""
    return rows.is_static and rows.has_one_result and rows.anchor.attrs["centred"]


def _are_along(rows: RowFacts) -> bool:
    return rows.result.ndim - 1 in rows.axes


def _row_by_row(rows: RowFacts) -> te.Schedule | Refused:
    if "axis" not in rows.anchor.attrs or not _are_along(rows):
        return Refused("rows are not the last dimensions")
    if _has_moments(rows) and rows.exceed_caches:
        return Refused(f"no cache holds a row of {rows.row_bytes} bytes for a second pass")
    return schedule_rowwise(rows.outs, rows.anchor, rows.target)


def _image_by_image(rows: RowFacts) -> te.Schedule | Refused:
    if not _has_moments(rows):
        return _SEVERAL
    if _are_along(rows) or rows.axes[0] == 0 or len(rows.axes) > 1:
        return Refused("the norm is not over one dimension between others")
    small = are_small_images(rows)
    return schedule_images(rows) if small else small


def _column_blocks(rows: RowFacts) -> te.Schedule | Refused:
    if len(rows.axes) > 1 or _are_along(rows):
        return Refused("the norm is over several dimensions, or over the last one")
    block, room = rows.length * LINE_BYTES, rows.target.cache_bytes.l2 // _SHARE_OF_BLOCKS
    if _has_moments(rows) and block > room:
        return Refused(f"a block of a cache line of each row, {block} bytes, exceeds {room} bytes of L2")
    return schedule_strided_axis(rows)


def _moments(rows: RowFacts) -> te.Schedule | Refused:
    if not _has_moments(rows):
        return _SEVERAL
    s, x, attrs, target = rows.create_schedule(), elements_of(rows.anchor), rows.anchor.attrs, rows.target
    moments = Moments(x, part_sizes(x.shape, x.dtype.nbytes, rows.axes, target), "standardize")
    norm = standardize_by_moments(moments, attrs["epsilon"], attrs["margin"])
    kept = [a for a in range(x.ndim) if a not in rows.axes]
    if _are_along(rows) and not rows.exceed_caches and kept:
        return schedule_rows_by_moments(s, rows.result, norm, moments, kept, target)
    first = max(kept, default=-1) + 1 if _are_along(rows) else x.ndim - 1
    return schedule_by_moments(s, rows.result, norm, moments, first, target)


_CANDIDATES: tuple[Candidate[RowFacts], ...] = (
    ("row by row", _row_by_row),
    ("image by image", _image_by_image),
    ("column blocks", _column_blocks),
    ("moments", _moments),
    ("stage by stage", stage_by_stage),
)
