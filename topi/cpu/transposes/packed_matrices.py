"""Transposes of batches of small matrices, larger than the caches: each tile prefetches a part of the next matrices.

So arithmetic and reading overlap, and memory is read in order, whatever the order of the tiles. A matrix that is whole
cache lines is transposed into the L1 cache, and written a cache line at a time with non-temporal stores. Otherwise as
many matrices as are whole cache lines together, 64 at most, are transposed into the L2 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr
from relayc.topi.cpu.prefetch import rows_of_whole_lines
from relayc.topi.cpu.transposes.facts import SHARES, TransposeFacts
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index

__all__ = ["PackedMatrices"]

_PART_OF_L2 = 4
"""Matrices that are stored together take at most this fraction (1 / n) of the L2 cache: so do the next ones."""


@dataclass(frozen=True, slots=True)
class PackedMatrices:
    """Groups of `count` matrices, of `size` elements each, along the last of the batch dimensions."""

    facts: TransposeFacts
    count: int
    size: int

    @staticmethod
    def of(facts: TransposeFacts) -> PackedMatrices | Refused:
        """The groups to use; refused where matrices aren't the input's own, or the caches don't hold a group."""
        if not facts.is_of_matrices or facts.out.ndim < 3:
            return Refused("the output is no batch of static matrices of the input")
        (rows, columns), shape = facts.static_sizes, facts.out.shape
        nbytes = rows * columns * facts.out.dtype.nbytes
        count = rows_of_whole_lines(nbytes)
        few = constant_size(shape[:-2]) < SHARES * facts.target.num_cores * count or constant_size([shape[-3]]) < count
        if few or count * nbytes > (facts.caches.l1 if count == 1 else facts.caches.l2 // _PART_OF_L2):
            return Refused(f"matrices of {nbytes} bytes are few, or the caches don't hold {count} together")
        return PackedMatrices(facts, count, rows * columns)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over groups, outermost first. `at_once`: see `PackedTiles`."""
        facts, out = self.facts, self.facts.out
        *outer, last, row, column = list(s[out].op.axis)
        group, matrix = s[out].split(last, factor=self.count)
        s[out].pragma(group, "loop_partition_hint")
        _, vector = s[out].split(s[out].fuse(matrix, row, column), factor=facts.line)
        s[out].vectorize(vector)
        _, packed, blocks, vectors = facts.copied(s)
        s[packed].compute_at(s[out], group)
        self._prefetch_ahead(s, packed, blocks, vectors)
        return [*outer, group]

    def _prefetch_ahead(self, s: te.Schedule, packed: te.Tensor, blocks: te.IterVar, vectors: te.IterVar) -> None:
        """Prefetch with each tile that is transposed its share of a matrix of the next group."""
        facts, (rows, columns) = self.facts, self.facts.static_sizes
        of_block, of_matrix = -(-columns // facts.lanes), -(-self.size // facts.line_of_input)
        lines = -(-of_matrix // (of_block * -(-rows // facts.block)))

        def in_next(*index: PrimExpr) -> Sequence[PrimExpr]:
            matrix = ravel_index(index[:-2], facts.out.shape[:-2]) + self.count
            tile = blocks.var * of_block + vectors.var
            return (matrix * self.size + tile * (lines * facts.line_of_input),)

        facts.prefetch(s, packed, vectors, lines, lines, lambda _: in_next)
