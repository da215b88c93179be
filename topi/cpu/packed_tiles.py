"""Transpositions beyond the caches: tiles are turned into the first-level cache, and leave it by whole cache lines.

Memory is slow where few bytes of many places are touched at once. So strips of the input's lines, a cache line wide,
become tiles, of which each line of the output is written a few cache lines at a time, past the caches. Where the
output's lines are short, tiles take up whole ones, and are written as one piece; so do matrices that the cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import te
from topi.cpu.accesses import reads
from topi.cpu.prefetch import LINE_BYTES
from topi.cpu.register_transpose import block_of, transpose_in_registers
from topi.groups import constant_size, extent_of
from topi.registry import operations_behind

if TYPE_CHECKING:
    from backend.target import Target
    from te.tir import Dim

__all__ = ["PackedTiles", "power_of_two"]

_LINE_PARTS = 4
"""Cache lines that are written of each of the output's lines in a tile."""
_FEWEST_PARTS = 8
"""Cache lines that the output's lines have at least where they are no whole ones."""
_PARTS_OF_WHOLE_ROWS = 2
"""As many where tiles take up the input's lines whole, so that it is read in order."""
_PARTS_APART = 8
"""As many where the output's lines are apart by powers of two, from `_PAGE` on."""
_WHOLE_ROW_BYTES = 512
"""Lines of the input are taken whole up to this."""
_SHARED_BYTES, _PAGE = 512, 4096
"""Lines that are multiples of these apart share few sets, of the caches and of what memory works on at once."""
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
    """Tiles of `height` lines of `out` along axis `number`, `width` elements of each, `run` before the next strip.

    `tensor` is turned into vectors of `lanes`, its dimension `position` lies along the last axis of `out`. What lies
    `ahead` elements further on in it is asked for; or whole lines of it are copied first (`lines_first`), where a
    cache could not keep the rest of them while a part is used. Lines of `out` that are no whole cache lines are
    computed from where one begins in memory (`as_in_memory`), a cache line further on than the others at most.
    """

    out: te.Tensor
    number: int
    tensor: te.Tensor
    position: int
    lanes: int
    height: int
    width: int
    run: int
    ahead: int
    lines_first: bool = False
    as_in_memory: bool = False

    @staticmethod
    def of(
        out: te.Tensor, number: int, tensor: te.Tensor, position: int, lanes: int, target: Target
    ) -> PackedTiles | None:
        """None where the output is neither in one piece nor its lines whole cache lines, nor long."""
        rows, columns = extent_of(out.op.axis[number]), extent_of(out.op.axis[-1])
        assert isinstance(rows, int) and isinstance(columns, int)
        height, line = min(LINE_BYTES // tensor.dtype.nbytes, rows), columns * out.dtype.nbytes
        turn = _Turn(out, number, tensor, position, lanes)
        if number == len(out.shape) - 2 and rows * line % LINE_BYTES == 0:
            batch = len(out.shape) > 2 and position == len(tensor.shape) - 2
            if batch and rows * line <= target.cache_bytes.l1:
                return turn.tiles(rows, columns, columns, rows * columns)
            if height * line <= target.cache_bytes.l2 // 16:
                return turn.of_whole_lines(height, rows, columns)
        if line >= (_LINE_PARTS if line % LINE_BYTES == 0 else _FEWEST_PARTS) * LINE_BYTES:
            return turn.of_long_lines(height, rows, columns, target)
        return None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a tile, outermost first.

        So many elements are computed `at_once`, at least a cache line of them and at most what a tile has of a line.
        """
        out, number, tensor = self.out, self.number, self.tensor
        assert isinstance(out.op, te.ComputeOp)
        axes = out.op.axis
        strip, row = s[out].split(axes[number], factor=self.height, tail="shift")
        line = LINE_BYTES // out.dtype.nbytes
        if self.as_in_memory:
            tile, each, column = s[out].split_lines(self.width, line)
            run, part = s[out].split(tile, factor=max(self.run // self.width, 1), tail="shift")
            s[out].unroll(each)
            columns = [each, column]
        else:
            run, within = s[out].split(axes[-1], factor=self.run, tail="shift")
            part, column = s[out].split(within, factor=self.width, tail="shift")
            columns = [column]
        tiles = [*axes[:number], *axes[number + 1 : -1], run, strip]
        s[out].reorder(*tiles, part, row, *columns)
        if not self.as_in_memory:
            if self.width == self.run and all(read is tensor for read, _ in reads(out.op)):
                column = s[out].fuse(row, column)
            vector = at_once if at_once % line == 0 and at_once <= self.width else line
            _, column = s[out].split(column, factor=vector, tail="shift")
        s[out].vectorize(column)
        readers = [op for op in operations_behind([out]) if tensor in op.input_tensors]
        source = s.cache_read(tensor, "local", readers) if self.lines_first else tensor
        packed, blocks, vectors = transpose_in_registers(s, source, readers, self.position, self.lanes)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], part)
        if self.lines_first:
            s[source].compute_at(s[packed], vectors)
            s[source].vectorize(s[source].op.axis[-1])
            s[source].prefetch_ahead(tensor, s[source].op.axis[self.position], self.ahead)
        else:  # the end of a block: one that begins in a line may end in the next
            s[packed].prefetch_ahead(tensor, blocks, self.ahead + block_of(self.lanes, tensor.dtype) - 1)
        return tiles


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is turned, and how far apart in memory the lines of both sides are."""

    out: te.Tensor
    number: int
    tensor: te.Tensor
    position: int
    lanes: int

    def tiles(
        self, height: int, width: int, run: int, ahead: int, lines_first: bool = False, as_in_memory: bool = False
    ) -> PackedTiles:
        """Tiles of such sizes."""
        out, number, tensor, position, lanes = self.out, self.number, self.tensor, self.position, self.lanes
        return PackedTiles(out, number, tensor, position, lanes, height, width, run, ahead, lines_first, as_in_memory)

    def of_whole_lines(self, height: int, rows: int, columns: int) -> PackedTiles:
        """Strips of all the input's lines; wider ones, and fewer, where these share sets of the caches."""
        shared = power_of_two(self.tensor, self.tensor.shape[self.position + 1 :]) >= _SHARED_BYTES
        lines_first = shared and self.tensor.dtype.nbytes == 1  # tiles of bytes have the most lines
        strips = 1 if shared and not lines_first else _STRIPS
        height = min(height * _STRIPS // strips, rows)
        return self.tiles(height, columns, columns, height * strips, lines_first)

    def of_long_lines(self, height: int, rows: int, columns: int, target: Target) -> PackedTiles:
        """Strips of so many of the input's lines that the second-level cache keeps the rest of their cache lines.

        These are a part of the next strip where lines begin anywhere.
        """
        behind, l2 = self.tensor.shape[self.position + 1 :], target.cache_bytes.l2
        apart, power = constant_size(behind), power_of_two(self.tensor, behind)
        line = LINE_BYTES // self.out.dtype.nbytes
        known = all(isinstance(d, int) for d in self.out.shape[1:])  # elsewhere it isn't known where rows begin
        as_in_memory, shared = columns % line != 0 and known, power >= _SHARED_BYTES
        whole_rows = rows == apart and rows * self.tensor.dtype.nbytes <= _WHOLE_ROW_BYTES
        if whole_rows:
            height = rows
        by_lines = self._is_stored_by_lines(target)
        if by_lines and (not shared or (power >= _PAGE and as_in_memory)):
            height = min(height * (_LINES_OF_PAGES if shared else _LINES_AT_ONCE), rows)
        if by_lines and not shared:
            parts = _PARTS_BY_LINES
        elif as_in_memory:  # of which one more is turned, so few would be many in vain
            parts = _LINE_PARTS
        elif shared and height <= _FEW_ROWS:
            parts = _PARTS_OF_FEW_ROWS
        elif self._ends_in_pages():
            parts = _PARTS_APART
        else:
            parts = _PARTS_OF_WHOLE_ROWS if whole_rows else _LINE_PARTS
        width = min(max(parts * line, self.lanes), columns)
        run = min(max(l2 // (16 * LINE_BYTES) // width, 1) * width, columns)
        ahead = min(_AHEAD, max(l2 // power, block_of(self.lanes, self.tensor.dtype))) * apart
        return self.tiles(height, width, run, ahead, shared, as_in_memory)

    def _ends_in_pages(self) -> bool:
        """Are the output's lines apart by powers of two, from pages on?"""
        return power_of_two(self.out, self.out.shape[self.number + 1 :]) >= _PAGE

    def _is_stored_by_lines(self, target: Target) -> bool:
        """Is a store a whole cache line, so that tiles had better take more of each of the input's lines?"""
        nbytes = self.tensor.dtype.nbytes
        long = constant_size(self.tensor.shape[self.position + 1 :]) * nbytes >= _LONG_LINE_BYTES
        return target.vector_bytes >= LINE_BYTES and nbytes > 1 and long and not self._ends_in_pages()


def power_of_two(tensor: te.Tensor, behind: Sequence[Dim]) -> int:
    """The largest power of two that divides the bytes between neighbours along a dimension, given those behind it."""
    apart = constant_size(behind) * tensor.dtype.nbytes
    return apart & -apart
