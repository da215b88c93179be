"""Transpositions beyond the caches: tiles are turned into the first-level cache, and leave it by whole cache lines.

Memory is slow where few bytes of many places are touched at once. So strips of the input's lines, a cache line wide,
become tiles, of which each line of the output is written a few cache lines at a time, past the caches. Where the
output's lines are short, tiles take up whole ones, and are written as one piece; so do matrices that the cache holds.
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
"""Cache lines that are written of each of the output's lines in a tile."""
_FEWEST_PARTS = 8
"""Cache lines that the output's lines have at least where they are no whole ones."""
_PARTS_OF_WHOLE_ROWS = 2
"""As many where tiles take up the input's lines whole, so that it is read in order."""
_PARTS_APART = 8
"""As many where the output's lines are apart by powers of two, from pages on."""
_WHOLE_ROW_BYTES = 512
"""Lines of the input are taken whole up to this."""
_FEW_ROWS, _PARTS_OF_FEW_ROWS = 16, 2
"""As many of so few lines of the output at most, where the caches hold few of the input's."""
_LINES_AT_ONCE, _PARTS_BY_LINES = 2, 2
"""Cache lines of each of the input's lines in a tile, and of the output's, where a store is a whole cache line."""
_LINES_OF_PAGES = 8
"""As many of the input's lines where these are pages apart."""
_LONG_LINE_BYTES = 1024
"""Of the input's lines, from which that is so. (Lines of 1020 bytes took 12 % longer.)"""
_STRIPS = 4
"""Strips that are asked for in advance where tiles take up whole lines of the output."""
_AHEAD = 64
"""Lines of the input that are asked for in advance where they don't."""


@dataclass(frozen=True, slots=True)
class PackedTiles:
    """Tiles of `height` lines of the output, `width` elements of each, `run` before the next strip.

    What lies `ahead` elements further on in the input is asked for; or whole lines of it are copied first
    (`lines_first`), where a cache could not keep the rest of them while a part is used. `as_in_memory`: lines of the
    output begin in tiles where they do in memory.
    """

    turn: TransposeGeometry
    height: int
    width: int
    run: int
    ahead: int
    lines_first: bool = False
    as_in_memory: bool = False

    @staticmethod
    def of(turn: TransposeGeometry, target: Target) -> PackedTiles | None:
        """None where the output is neither in one piece nor its lines whole cache lines, nor long."""
        rows, columns, out = turn.rows, turn.columns, turn.out
        assert isinstance(rows, int) and isinstance(columns, int)
        height, line = min(turn.line_of_input, rows), columns * out.dtype.nbytes
        if turn.number == len(out.shape) - 2 and rows * line % LINE_BYTES == 0:
            batch = len(out.shape) > 2 and turn.position == len(turn.tensor.shape) - 2
            if batch and rows * line <= target.cache_bytes.l1:
                return PackedTiles(turn, rows, columns, columns, rows * columns)
            if height * line <= target.cache_bytes.l2 // 16:
                return _of_whole_lines(turn, height, rows, columns)
        if line >= (_LINE_PARTS if line % LINE_BYTES == 0 else _FEWEST_PARTS) * LINE_BYTES:
            return _of_long_lines(turn, height, rows, columns, target)
        return None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a tile, outermost first.

        So many elements are computed `at_once`, at least a cache line of them and at most what a tile has of a line.
        """
        turn, out, number = self.turn, self.turn.out, self.turn.number
        assert isinstance(out.op, te.ComputeOp)
        axes = out.op.axis
        strip, row = s[out].split(axes[number], factor=self.height, tail="shift")
        if self.as_in_memory:
            tile, columns = turn.split_columns(s, self.width)
            run, part = s[out].split(tile, factor=max(self.run // self.width, 1), tail="shift")
        else:
            run, within = s[out].split(axes[-1], factor=self.run, tail="shift")
            part, column = s[out].split(within, factor=self.width, tail="shift")
            columns = (column,)
        tiles = [*axes[:number], *axes[number + 1 : -1], run, strip]
        s[out].reorder(*tiles, part, row, *columns)
        column = columns[-1]
        if not self.as_in_memory:
            if self.width == self.run and all(read is turn.tensor for read, _ in reads(out.op)):
                column = s[out].fuse(row, column)
            vector = at_once if at_once % turn.line == 0 and at_once <= self.width else turn.line
            _, column = s[out].split(column, factor=vector, tail="shift")
        s[out].vectorize(column)
        source, packed, blocks, vectors = turn.copied(s, lines_first=self.lines_first)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], part)
        if self.lines_first:
            s[source].compute_at(s[packed], vectors)
            s[source].prefetch_ahead(turn.tensor, s[source].op.axis[turn.position], self.ahead, to_l1=turn.near)
        else:  # the end of a block: one that begins in a line may end in the next
            s[packed].prefetch_ahead(turn.tensor, blocks, self.ahead + turn.block - 1, to_l1=turn.near)
        return tiles


def _of_whole_lines(turn: TransposeGeometry, height: int, rows: int, columns: int) -> PackedTiles:
    """Strips of all the input's lines; wider ones, and fewer, where these share sets of the caches."""
    lines_first = turn.has_set_conflicts and turn.tensor.dtype.nbytes == 1  # tiles of bytes have the most lines
    strips = 1 if turn.has_set_conflicts and not lines_first else _STRIPS
    height = min(height * _STRIPS // strips, rows)
    return PackedTiles(turn, height, columns, columns, height * strips, lines_first)


def _of_long_lines(turn: TransposeGeometry, height: int, rows: int, columns: int, target: Target) -> PackedTiles:
    """Strips of so many of the input's lines that the second-level cache keeps the rest of their cache lines.

    These are a part of the next strip where lines begin anywhere.
    """
    l2, shared, as_in_memory = target.cache_bytes.l2, turn.has_set_conflicts, turn.begins_anywhere
    whole_rows = rows == turn.apart and rows * turn.tensor.dtype.nbytes <= _WHOLE_ROW_BYTES
    if whole_rows:
        height = rows
    by_lines = _is_stored_by_lines(turn, target)
    if by_lines and (not shared or (turn.power >= PAGE_BYTES and as_in_memory)):
        height = min(height * (_LINES_OF_PAGES if shared else _LINES_AT_ONCE), rows)
    if by_lines and not shared:
        parts = _PARTS_BY_LINES
    elif as_in_memory:  # of which one more is turned, so few would be many in vain
        parts = _LINE_PARTS
    elif shared and height <= _FEW_ROWS:
        parts = _PARTS_OF_FEW_ROWS
    elif turn.ends_in_pages:
        parts = _PARTS_APART
    else:
        parts = _PARTS_OF_WHOLE_ROWS if whole_rows else _LINE_PARTS
    width = min(max(parts * turn.line, turn.lanes), columns)
    run = min(max(l2 // (16 * LINE_BYTES) // width, 1) * width, columns)
    ahead = min(_AHEAD, max(l2 // turn.power, turn.block)) * turn.apart
    return PackedTiles(turn, height, width, run, ahead, shared, as_in_memory)


def _is_stored_by_lines(turn: TransposeGeometry, target: Target) -> bool:
    """Is a store a whole cache line, so that tiles had better take more of each of the input's lines?"""
    nbytes = turn.tensor.dtype.nbytes
    long = turn.apart * nbytes >= _LONG_LINE_BYTES
    return target.vector_bytes >= LINE_BYTES and nbytes > 1 and long and not turn.ends_in_pages
