"""Non-temporal stores of unaligned rows: tiles are shifted to cache-line boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.prefetch import LINE_BYTES, has_line_vectors, is_beyond_caches, is_streamed
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import extent_of, has_gaps, is_static, iterations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["are_unaligned", "even_tile", "rows_use_nontemporal_stores", "split_at_lines", "vectorize_rows"]

_LEAST_LINES, _LEAST_LINES_FEW_BUFFERS = 8, 48
"""Fewest cache lines of a row: shorter ones are mostly ends; and the same on cores with few line-fill buffers."""
_MASKED_BYTES = 4
"""Bytes of elements whose row ends get masked stores (see `backend.llvm.codegen.stores`)."""
_MOST_LINES = 6
"""Most cache lines of a tile, where there is a choice: more are no faster, and take longer to compile."""


def are_unaligned(out: te.Tensor, length: int, lines: int, target: Target) -> bool:
    """True if rows of so many elements, at least so many `lines`, are no whole cache lines, beyond the caches."""
    line = LINE_BYTES // out.dtype.nbytes
    known = is_static(out.shape) and not has_gaps(out)
    return known and length % line > 0 and length >= lines * line and is_beyond_caches(out, target)


def rows_use_nontemporal_stores(out: te.Tensor, length: int, target: Target) -> bool:
    """True if unaligned rows of so many elements get non-temporal stores for the cache lines inside of them."""
    least = _LEAST_LINES_FEW_BUFFERS if has_few_fill_buffers(target) else _LEAST_LINES
    return are_unaligned(out, length, least, target)


def vectorize_rows(
    s: te.Schedule, out: te.Tensor, axes: Sequence[te.IterVar], target: Target
) -> tuple[te.IterVar, int]:
    """Vectorise rows of an output, its last `axes`; returns the loop outside of vectors and its elements.

    In outputs larger than the LLC, whole cache lines inside of unaligned rows get non-temporal stores; plain stores
    would read each cache line before writing it, three bytes of traffic for two. The ends of a row must not touch those
    cache lines: a cached one has to be evicted before a non-temporal store, which stalls later stores.
    """
    length, line = iterations(axes), LINE_BYTES // out.dtype.nbytes
    row, extent = s[out].fuse(*axes), length if len(axes) > 1 else extent_of(axes[0])
    if not rows_use_nontemporal_stores(out, length, target):
        whole_lines = vector_lanes(target, out.dtype.nbytes) if is_streamed(out, 1, target) else 1
        lanes = max(vector_lanes(target), whole_lines)
        return vectorize_elements(s, out, row, extent, lanes), elements_per_step(extent, lanes)
    width = even_tile(length, line)
    apart = has_few_fill_buffers(target) and has_line_vectors(target) and out.dtype.nbytes == _MASKED_BYTES
    return split_at_lines(s, out, width, apart=apart)[0], width


def split_at_lines(
    s: te.Schedule, out: te.Tensor, width: int, *, apart: bool = False
) -> tuple[te.IterVar, te.IterVar, te.IterVar]:
    """Split rows of an output at cache lines and vectorise them: the loops over tiles, over lines and in a line."""
    tile, each, column = s[out].split_lines(width, LINE_BYTES // out.dtype.nbytes, apart=apart)
    s[out].unroll(each)
    s[out].vectorize(column)
    return tile, each, column


def even_tile(length: int, line: int) -> int:
    """Return the elements of a tile of whole cache lines such that the last tile, which ends with its row, repeats few.

    The last tile keeps at least a cache line of its own, so that the row's end touches none already stored.
    """
    rest = length - line
    sizes = [n * line for n in range(3 * _MOST_LINES, 0, -1) if n * line <= rest]
    widths = [width for width in sizes if (rest - 1) % width + 1 >= line]
    return min(widths, key=lambda width: (width > _MOST_LINES * line, -(-rest // width) * width), default=sizes[0])
