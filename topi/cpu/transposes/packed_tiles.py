"""Transposes of tensors larger than the caches: tiles are transposed in the L1 cache and stored by whole cache lines.

Memory is slow where few bytes of many places are touched at once. So columns of the input, a cache line wide, become
tiles, of which each output row is written a few cache lines at a time, with non-temporal stores. Where the output's
rows are short, tiles take up whole ones and are stored contiguously; so are matrices that the cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.transposes.geometry import PAGE_BYTES, TransposeGeometry

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PackedTiles"]

_LINE_PARTS = 4
"""Cache lines that are written of each output row in a tile."""
_FEWEST_PARTS = 8
"""Fewest cache lines of an output row that is no whole number of them."""
_PARTS_OF_WHOLE_ROWS = 2
"""Cache lines of each output row where tiles take up the input's rows whole, so that it is read in order."""
_PARTS_APART = 8
"""Cache lines of each output row where output rows are a multiple of pages apart."""
_WHOLE_ROW_BYTES = 512
"""Input rows are taken whole up to so many bytes."""
_FEW_ROWS, _PARTS_OF_FEW_ROWS = 16, 2
"""Most output rows, and cache lines of each, where the caches hold few of the input's rows."""
_LINES_AT_ONCE, _PARTS_BY_LINES = 2, 2
"""Cache lines of each input row in a tile, and of each output row, where a store is a whole cache line."""
_LINES_OF_PAGES = 8
"""Cache lines of each input row where these are pages apart."""
_LONG_LINE_BYTES = 1024
"""Least bytes of an input row for several of its cache lines in a tile. (Rows of 1020 bytes took 12 % longer.)"""
_TILES_AHEAD = 4
"""Prefetch distance in tiles where tiles take up whole output rows."""
_ROWS_AHEAD = 64
"""Prefetch distance in input rows where they don't."""


@dataclass(frozen=True, slots=True)
class PackedTiles:
    """Tiles of `height` output rows, `width` elements of each, `run` elements of a row before the next rows.

    The prefetch distance in the input is `ahead` elements; whole rows are copied first (`lines_first`) where a cache
    could not keep the rest of them while a part is used. `as_in_memory`: tiles of the output begin at cache lines of
    memory.
    """

    geometry: TransposeGeometry
    height: int
    width: int
    run: int
    ahead: int
    lines_first: bool = False
    as_in_memory: bool = False

    @staticmethod
    def of(geometry: TransposeGeometry, target: Target) -> PackedTiles | None:
        """The tiles to use; None where the output is neither contiguous nor its rows whole cache lines, nor long."""
        rows, columns, out = geometry.rows, geometry.columns, geometry.out
        assert isinstance(rows, int) and isinstance(columns, int)
        height, line = min(geometry.line_of_input, rows), columns * out.dtype.nbytes
        if geometry.number == len(out.shape) - 2 and rows * line % LINE_BYTES == 0:
            batch = len(out.shape) > 2 and geometry.position == len(geometry.tensor.shape) - 2
            if batch and rows * line <= target.cache_bytes.l1:
                return PackedTiles(geometry, rows, columns, columns, rows * columns)
            if height * line <= target.cache_bytes.l2 // 16:
                return _of_whole_lines(geometry, height, rows, columns)
        if line >= (_LINE_PARTS if line % LINE_BYTES == 0 else _FEWEST_PARTS) * LINE_BYTES:
            return _of_long_lines(geometry, height, rows, columns, target)
        return None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a tile, outermost first.

        `at_once` elements are computed together, at least a cache line of them and at most what a tile has of a row.
        """
        geometry, out, number = self.geometry, self.geometry.out, self.geometry.number
        assert isinstance(out.op, te.ComputeOp)
        axes = out.op.axis
        row_tile, row = s[out].split(axes[number], factor=self.height, tail="shift")
        if self.as_in_memory:
            tile, columns = geometry.split_columns(s, self.width)
            run, part = s[out].split(tile, factor=max(self.run // self.width, 1), tail="shift")
        else:
            run, within = s[out].split(axes[-1], factor=self.run, tail="shift")
            part, column = s[out].split(within, factor=self.width, tail="shift")
            columns = (column,)
        tiles = [*axes[:number], *axes[number + 1 : -1], run, row_tile]
        s[out].reorder(*tiles, part, row, *columns)
        column = columns[-1]
        if not self.as_in_memory:
            if self.width == self.run and all(read is geometry.tensor for read, _ in reads(out.op)):
                column = s[out].fuse(row, column)
            vector = at_once if at_once % geometry.line == 0 and at_once <= self.width else geometry.line
            _, column = s[out].split(column, factor=vector, tail="shift")
        s[out].vectorize(column)
        source, packed, blocks, vectors = geometry.copied(s, lines_first=self.lines_first)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], part)
        if self.lines_first:
            s[source].compute_at(s[packed], vectors)
            s[source].prefetch_ahead(
                geometry.tensor, s[source].op.axis[geometry.position], self.ahead, to_l1=geometry.to_l1
            )
        else:  # the end of a block: one that begins in a line may end in the next
            s[packed].prefetch_ahead(geometry.tensor, blocks, self.ahead + geometry.block - 1, to_l1=geometry.to_l1)
        return tiles


def _of_whole_lines(geometry: TransposeGeometry, height: int, rows: int, columns: int) -> PackedTiles:
    """Tiles of whole output rows; wider ones, prefetched less far, where input rows conflict in cache sets."""
    lines_first = geometry.has_set_conflicts and geometry.tensor.dtype.nbytes == 1  # tiles of bytes have the most lines
    tiles_ahead = 1 if geometry.has_set_conflicts and not lines_first else _TILES_AHEAD
    height = min(height * _TILES_AHEAD // tiles_ahead, rows)
    return PackedTiles(geometry, height, columns, columns, height * tiles_ahead, lines_first)


def _of_long_lines(geometry: TransposeGeometry, height: int, rows: int, columns: int, target: Target) -> PackedTiles:
    """Tiles of so many input rows that the L2 cache keeps the rest of their cache lines.

    The rest is a part of the next tile where rows begin anywhere.
    """
    l2, shared, as_in_memory = target.cache_bytes.l2, geometry.has_set_conflicts, geometry.has_unaligned_rows
    whole_rows = rows == geometry.row_stride and rows * geometry.tensor.dtype.nbytes <= _WHOLE_ROW_BYTES
    if whole_rows:
        height = rows
    by_lines = _is_stored_by_lines(geometry, target)
    if by_lines and (not shared or (geometry.stride_alignment >= PAGE_BYTES and as_in_memory)):
        height = min(height * (_LINES_OF_PAGES if shared else _LINES_AT_ONCE), rows)
    if by_lines and not shared:
        parts = _PARTS_BY_LINES
    elif as_in_memory:  # one more line is transposed, mostly in vain where there are few
        parts = _LINE_PARTS
    elif shared and height <= _FEW_ROWS:
        parts = _PARTS_OF_FEW_ROWS
    elif geometry.is_page_strided:
        parts = _PARTS_APART
    else:
        parts = _PARTS_OF_WHOLE_ROWS if whole_rows else _LINE_PARTS
    width = min(max(parts * geometry.line, geometry.lanes), columns)
    run = min(max(l2 // (16 * LINE_BYTES) // width, 1) * width, columns)
    ahead = min(_ROWS_AHEAD, max(l2 // geometry.stride_alignment, geometry.block)) * geometry.row_stride
    return PackedTiles(geometry, height, width, run, ahead, shared, as_in_memory)


def _is_stored_by_lines(geometry: TransposeGeometry, target: Target) -> bool:
    """Whether a store is a whole cache line, so that tiles had better take more of each input row."""
    nbytes = geometry.tensor.dtype.nbytes
    long = geometry.row_stride * nbytes >= _LONG_LINE_BYTES
    return target.vector_bytes >= LINE_BYTES and nbytes > 1 and long and not geometry.is_page_strided
