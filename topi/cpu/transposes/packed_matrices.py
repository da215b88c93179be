"""Batches of small matrices that are turned, beyond the caches: with each tile a part of the next ones is asked for.

So arithmetic and reading overlap, and memory is read in order, whatever the order of the tiles. One that is whole cache
lines is turned into the first-level cache, and leaves it a line at a time, past the caches. Where it isn't, several
are: as many, 64 at most, are turned into the second-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import PrimExpr
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.transposes.geometry import TransposeGeometry
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PackedMatrices"]

_PART_OF_L2 = 4
"""Matrices that are stored together take at most this part of the second-level cache: so do the next ones."""
_SHARES = 4
"""Groups of matrices for each core, at least."""


@dataclass(frozen=True, slots=True)
class PackedMatrices:
    """`count` matrices of the last of the dimensions in front, `size` elements each, at a time."""

    turn: TransposeGeometry
    count: int
    size: int

    @staticmethod
    def of(turn: TransposeGeometry, target: Target) -> PackedMatrices | None:
        """None where lines of matrices are not those of the input, or the caches don't hold what is stored together."""
        out, tensor, rows, columns = turn.out, turn.tensor, turn.rows, turn.columns
        assert isinstance(out.op, te.ComputeOp) and isinstance(rows, int) and isinstance(columns, int)
        shape = [d for d in out.shape if isinstance(d, int)]
        in_place = [*out.shape[:-2], columns, rows] == list(tensor.shape) and turn.number == len(out.shape) - 2
        if not in_place or len(shape) != len(out.shape) or len(shape) < 3 or "memory_strides" in out.op.attrs:
            return None
        nbytes = rows * columns * out.dtype.nbytes
        count = LINE_BYTES // math.gcd(nbytes, LINE_BYTES)
        few = math.prod(shape[:-2]) < _SHARES * target.num_cores * count or shape[-3] < count
        if few or count * nbytes > (target.cache_bytes.l1 if count == 1 else target.cache_bytes.l2 // _PART_OF_L2):
            return None
        return PackedMatrices(turn, count, rows * columns)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over groups, outermost first. `at_once`: see `PackedTiles`."""
        turn, out = self.turn, self.turn.out
        *outer, last, row, column = list(s[out].op.axis)
        group, matrix = s[out].split(last, factor=self.count)
        s[out].pragma(group, "loop_partition_hint")
        _, vector = s[out].split(s[out].fuse(matrix, row, column), factor=turn.line)
        s[out].vectorize(vector)
        _, packed, blocks, vectors = turn.copied(s)
        s[packed].compute_at(s[out], group)
        self._prefetch_ahead(s, packed, blocks, vectors)
        return [*outer, group]

    def _prefetch_ahead(self, s: te.Schedule, packed: te.Tensor, blocks: te.IterVar, vectors: te.IterVar) -> None:
        """Ask with each tile that is turned for its share of a matrix of the next group."""
        turn, columns, rows = self.turn, self.turn.tensor.shape[-2], self.turn.tensor.shape[-1]
        assert isinstance(columns, int) and isinstance(rows, int)
        of_block, of_matrix = -(-columns // turn.lanes), -(-self.size // turn.line_of_input)
        lines = -(-of_matrix // (of_block * -(-rows // turn.block)))

        def in_next(*index: PrimExpr) -> Sequence[PrimExpr]:
            matrix = ravel_index(index[:-2], turn.out.shape[:-2]) + self.count
            tile = blocks.var * of_block + vectors.var
            return (matrix * self.size + tile * (lines * turn.line_of_input),)

        s[packed].prefetch_line(turn.tensor, vectors, in_next, lines=lines, to_l1=turn.near)
