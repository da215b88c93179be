"""Rows of results that begin anywhere in a cache line, stored by the lines that memory has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches, is_streamed
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["even_tile", "rows_leave_by_lines", "vectorize_rows"]

_LEAST_LINES, _LEAST_LINES_OF_FEW = 8, 48
"""Of a row: shorter ones are ends more than anything else; and where a core waits for few lines of memory."""
_TURNED_BYTES = 4
"""Of elements whose ends of rows are stored by masks (see `backend.llvm.codegen.nontemporal_stores`)."""
_MOST_LINES = 6
"""Of a tile, where there is a choice: more are no faster, and take longer to compile."""


def rows_leave_by_lines(out: te.Tensor, length: int, target: Target) -> bool:
    """Do rows of so many elements leave the caches by the lines of memory inside of them, which begin anywhere?"""
    line = LINE_BYTES // out.dtype.nbytes
    known = all(isinstance(d, int) for d in out.shape) and "memory_strides" not in out.op.attrs
    least = _LEAST_LINES_OF_FEW if has_few_fill_buffers(target) else _LEAST_LINES
    return known and length % line > 0 and length >= least * line and is_beyond_caches(out, target)


def vectorize_rows(
    s: te.Schedule, out: te.Tensor, axes: Sequence[te.IterVar], target: Target
) -> tuple[te.IterVar, int]:
    """Vectorise rows of an output, its last `axes`; returns the loop outside of vectors, and what it takes at once.

    Beyond the caches lines of memory that lie inside of rows, which begin anywhere, are stored past these. Otherwise
    each is read before it is written: three bytes are moved for two. A row's ends had better reach into none of them:
    a line that is in a cache has to leave that before it is stored past it, and what is stored behind it waits.
    """
    length, line = constant_size([extent_of(a) for a in axes]), LINE_BYTES // out.dtype.nbytes
    row, extent = s[out].fuse(*axes), length if len(axes) > 1 else extent_of(axes[0])
    if not rows_leave_by_lines(out, length, target):
        whole_lines = vector_lanes(target, out.dtype.nbytes) if is_streamed(out, 1, target) else 1
        lanes = max(vector_lanes(target), whole_lines)
        return vectorize_elements(s, out, row, extent, lanes), elements_per_step(extent, lanes)
    width = even_tile(length, line)
    apart = has_few_fill_buffers(target) and target.vector_bytes == LINE_BYTES and out.dtype.nbytes == _TURNED_BYTES
    tile, each, column = s[out].split_lines(width, line, apart=apart)
    s[out].unroll(each)
    s[out].vectorize(column)
    return tile, width


def even_tile(length: int, line: int) -> int:
    """Elements of a tile of whole lines, so that the last, which ends with its row, repeats as little as can be.

    It has a line of its own at least: the row's end, which comes first in it, lies in none that has left already.
    """
    rest = length - line
    sizes = [n * line for n in range(3 * _MOST_LINES, 0, -1) if n * line <= rest]
    widths = [width for width in sizes if (rest - 1) % width + 1 >= line]
    return min(widths, key=lambda width: (width > _MOST_LINES * line, -(-rest // width) * width), default=sizes[0])
