"""Batches of small matrices that are turned, beyond the caches: with each tile a part of the next ones is asked for.

So arithmetic and reading overlap, and memory is read in order, whatever the order of the tiles. Where a matrix is no
whole cache lines, several are: as many, 64 at most, are turned into the second-level cache, and leave it a line at a
time, past the caches. One that is leaves by strips of its lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import te
from te.tir import PrimExpr
from topi.cpu.accesses import reads
from topi.cpu.prefetch import LINE_BYTES
from topi.cpu.turn import Turn
from topi.groups import constant_size
from topi.utils import ravel_index

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["PackedMatrices"]

_PART_OF_L2 = 4
"""Matrices that are stored together take at most this part of the second-level cache: so do the next ones."""
_SHARE_OF_L2, _STRIP_OF_L2 = 2 / 5, 1 / 16
"""Of the second-level cache, for one matrix that leaves by strips, and so for the next; and for a strip."""
_SHARES = 4
"""Groups of matrices for each core, at least."""


@dataclass(frozen=True, slots=True)
class PackedMatrices:
    """`count` matrices of the last of the dimensions in front, `size` elements each, at a time."""

    turn: Turn
    count: int
    size: int

    @staticmethod
    def of(turn: Turn, target: Target) -> PackedMatrices | None:
        """None where lines of matrices are not those of the input, or a matrix is too large, or small whole lines."""
        out, tensor, rows, columns = turn.out, turn.tensor, turn.rows, turn.columns
        assert isinstance(out.op, te.ComputeOp) and isinstance(rows, int) and isinstance(columns, int)
        shape = [d for d in out.shape if isinstance(d, int)]
        in_place = [*out.shape[:-2], columns, rows] == list(tensor.shape) and turn.number == len(out.shape) - 2
        if not in_place or len(shape) != len(out.shape) or len(shape) < 3 or "memory_strides" in out.op.attrs:
            return None
        nbytes = rows * columns * out.dtype.nbytes
        count = LINE_BYTES // math.gcd(nbytes, LINE_BYTES)
        few = math.prod(shape[:-2]) < _SHARES * target.num_cores * count or shape[-3] < count
        if few or (count > 1 and count * nbytes > target.cache_bytes.l2 // _PART_OF_L2):
            return None
        if count == 1 and not _leaves_by_strips(turn, rows, columns, target):
            return None
        return PackedMatrices(turn, count, rows * columns)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over groups, outermost first. `at_once`: see `PackedTiles`."""
        if self.count == 1:
            return self._by_strips(s, at_once)
        turn, out = self.turn, self.turn.out
        *outer, last, row, column = list(s[out].op.axis)
        group, matrix = s[out].split(last, factor=self.count)
        s[out].pragma(group, "loop_partition_hint")
        _, vector = s[out].split(s[out].fuse(matrix, row, column), factor=turn.line)
        s[out].vectorize(vector)
        _, packed, blocks, vectors = turn.copied(s)
        s[packed].compute_at(s[out], group)
        self._ask_ahead(s, packed, blocks, vectors)
        return [*outer, group]

    def _by_strips(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Strips of a matrix, a cache line of each of the input's lines, which are whole lines of the result."""
        turn, out = self.turn, self.turn.out
        *outer, row, column = list(s[out].op.axis)
        rows = constant_size([turn.rows])
        height = min(max(turn.line_of_input, turn.line), rows)
        strip, row = s[out].split(row, factor=height, tail="shift")
        assert isinstance(out.op, te.ComputeOp)
        if all(read is turn.tensor for read, _ in reads(out.op)):
            column = s[out].fuse(row, column)
        fits = at_once % turn.line == 0 and at_once <= constant_size([turn.columns])
        _, vector = s[out].split(column, factor=at_once if fits else turn.line, tail="shift")
        s[out].vectorize(vector)
        _, packed, blocks, vectors = turn.copied(s)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], strip)
        of_vectors, of_blocks = -(-constant_size([turn.columns]) // turn.lanes), -(-height // turn.block)
        tiles = of_vectors * of_blocks
        lines = -(-self.size * height // (turn.line_of_input * tiles * rows))

        def in_next(*index: PrimExpr) -> Sequence[PrimExpr]:
            matrix = ravel_index(index[:-2], turn.out.shape[:-2]) + 1
            tile = (index[-2] - blocks.var * turn.block) * tiles // height + vectors.var * of_blocks + blocks.var
            return (matrix * self.size + tile * (lines * turn.line_of_input),)

        s[packed].prefetch_line(turn.tensor, blocks, in_next, lines=lines)
        return [*outer, strip]

    def _ask_ahead(self, s: te.Schedule, packed: te.Tensor, blocks: te.IterVar, vectors: te.IterVar) -> None:
        """Ask with each tile that is turned for its share of a matrix of the next group."""
        turn, columns, rows = self.turn, self.turn.tensor.shape[-2], self.turn.tensor.shape[-1]
        assert isinstance(columns, int) and isinstance(rows, int)
        of_block, of_matrix = -(-columns // turn.lanes), -(-self.size // turn.line_of_input)
        lines = -(-of_matrix // (of_block * -(-rows // turn.block)))

        def in_next(*index: PrimExpr) -> Sequence[PrimExpr]:
            matrix = ravel_index(index[:-2], turn.out.shape[:-2]) + self.count
            tile = blocks.var * of_block + vectors.var
            return (matrix * self.size + tile * (lines * turn.line_of_input),)

        s[packed].prefetch_line(turn.tensor, vectors, in_next, lines=lines)


def _leaves_by_strips(turn: Turn, rows: int, columns: int, target: Target) -> bool:
    """Does the first-level cache hold no matrix, the second-level one two, and a strip of the result beside?"""
    caches, of_result = target.cache_bytes, turn.out.dtype.nbytes
    matrix = rows * columns * max(turn.tensor.dtype.nbytes, of_result)
    strip = min(turn.line_of_input, rows) * columns * of_result
    return caches.l1 < matrix <= _SHARE_OF_L2 * caches.l2 and strip <= _STRIP_OF_L2 * caches.l2
