"""Transposes of tensors larger than the caches: tiles are transposed in the L1 cache and stored by whole cache lines.

Memory is slow where few bytes of many places are touched at once. So columns of the input, a cache line wide, become
tiles, of which each output row is written a few cache lines at a time, with non-temporal stores. Where the output's
rows are short, tiles take up whole ones and are stored contiguously; so are matrices that the cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.cpu.prefetch import LINE_BYTES, has_line_vectors
from relayc.topi.cpu.transposes.facts import PAGE_BYTES, TransposeFacts

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

    facts: TransposeFacts
    height: int
    width: int
    run: int
    ahead: int
    lines_first: bool = False
    as_in_memory: bool = False

    @staticmethod
    def of(facts: TransposeFacts) -> PackedTiles | Refused:
        """The tiles to use; refused where the output is neither contiguous nor its rows whole cache lines, nor long."""
        (rows, columns), out = facts.static_sizes, facts.out
        height, line = min(facts.line_of_input, rows), columns * out.dtype.nbytes
        if facts.is_of_whole_lines:
            batch = len(out.shape) > 2 and facts.position == len(facts.tensor.shape) - 2
            if batch and rows * line <= facts.caches.l1:
                return PackedTiles(facts, rows, columns, columns, rows * columns)
            if height * line <= facts.caches.l2 // 16:
                return _of_whole_lines(facts, height)
        if line >= (_LINE_PARTS if line % LINE_BYTES == 0 else _FEWEST_PARTS) * LINE_BYTES:
            return _of_long_lines(facts, height)
        return Refused(f"rows of {line} bytes are short, and the output is no matrices of whole cache lines")

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a tile, outermost first.

        `at_once` elements are computed together, at least a cache line of them and at most what a tile has of a row.
        """
        facts, out, number = self.facts, self.facts.out, self.facts.number
        axes = list(s[out].op.axis)
        row_tile, row = s[out].split(axes[number], factor=self.height, tail="shift")
        if self.as_in_memory:
            tile, columns = facts.split_columns(s, self.width)
            run, part = s[out].split(tile, factor=max(self.run // self.width, 1), tail="shift")
        else:
            run, within = s[out].split(axes[-1], factor=self.run, tail="shift")
            part, column = s[out].split(within, factor=self.width, tail="shift")
            columns = (column,)
        tiles = [*axes[:number], *axes[number + 1 : -1], run, row_tile]
        s[out].reorder(*tiles, part, row, *columns)
        column = columns[-1]
        if not self.as_in_memory:
            if self.width == self.run and facts.is_all_read:
                column = s[out].fuse(row, column)
            vector = facts.elements_stored(at_once, self.width)
            _, column = s[out].split(column, factor=vector, tail="shift")
        s[out].vectorize(column)
        source, packed, blocks, vectors = facts.copied(s, lines_first=self.lines_first)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], part)
        if self.lines_first:
            s[source].compute_at(s[packed], vectors)
            facts.prefetch_ahead(s, source, s[source].op.axis[facts.position], self.ahead)
        else:  # the end of a block: one that begins in a line may end in the next
            facts.prefetch_ahead(s, packed, blocks, self.ahead + facts.block - 1)
        return tiles


def _of_whole_lines(facts: TransposeFacts, height: int) -> PackedTiles:
    """Tiles of whole output rows; wider ones, prefetched less far, where input rows conflict in cache sets."""
    rows, columns = facts.static_sizes
    lines_first = facts.has_set_conflicts and facts.tensor.dtype.nbytes == 1  # tiles of bytes have the most lines
    tiles_ahead = 1 if facts.has_set_conflicts and not lines_first else _TILES_AHEAD
    height = min(height * _TILES_AHEAD // tiles_ahead, rows)
    return PackedTiles(facts, height, columns, columns, height * tiles_ahead, lines_first)


def _of_long_lines(facts: TransposeFacts, height: int) -> PackedTiles:
    """Tiles of so many input rows that the L2 cache keeps the rest of their cache lines.

    The rest is a part of the next tile where rows begin anywhere.
    """
    (rows, columns), l2 = facts.static_sizes, facts.caches.l2
    shared, as_in_memory = facts.has_set_conflicts, facts.has_unaligned_rows
    whole_rows = rows == facts.row_stride and rows * facts.tensor.dtype.nbytes <= _WHOLE_ROW_BYTES
    if whole_rows:
        height = rows
    by_lines = _is_stored_by_lines(facts)
    if by_lines and (not shared or (facts.stride_alignment >= PAGE_BYTES and as_in_memory)):
        height = min(height * (_LINES_OF_PAGES if shared else _LINES_AT_ONCE), rows)
    if by_lines and not shared:
        parts = _PARTS_BY_LINES
    elif as_in_memory:  # one more line is transposed, mostly in vain where there are few
        parts = _LINE_PARTS
    elif shared and height <= _FEW_ROWS:
        parts = _PARTS_OF_FEW_ROWS
    elif facts.is_page_strided:
        parts = _PARTS_APART
    else:
        parts = _PARTS_OF_WHOLE_ROWS if whole_rows else _LINE_PARTS
    width = min(max(parts * facts.line, facts.lanes), columns)
    run = min(max(l2 // (16 * LINE_BYTES) // width, 1) * width, columns)
    ahead = min(_ROWS_AHEAD, max(l2 // facts.stride_alignment, facts.block)) * facts.row_stride
    return PackedTiles(facts, height, width, run, ahead, shared, as_in_memory)


def _is_stored_by_lines(facts: TransposeFacts) -> bool:
    """Whether a store is a whole cache line, so that tiles had better take more of each input row."""
    nbytes = facts.tensor.dtype.nbytes
    long = facts.row_stride * nbytes >= _LONG_LINE_BYTES
    return has_line_vectors(facts.target) and nbytes > 1 and long and not facts.is_page_strided
