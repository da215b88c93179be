"""Transposes of batches of small matrices, larger than the caches: each tile prefetches a part of the next matrices.

So arithmetic and reading overlap, and memory is read in order, whatever the order of the tiles. A matrix that is whole
cache lines is transposed into the L1 cache, and written a cache line at a time with non-temporal stores. Otherwise as
many matrices as are whole cache lines together, 64 at most, are transposed into the L2 cache.
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
"""Matrices that are stored together take at most this fraction (1 / n) of the L2 cache: so do the next ones."""
_SHARES = 4
"""Groups of matrices for each core, at least."""


@dataclass(frozen=True, slots=True)
class PackedMatrices:
    """Groups of `count` matrices, of `size` elements each, along the last of the batch dimensions."""

    geometry: TransposeGeometry
    count: int
    size: int

    @staticmethod
    def of(geometry: TransposeGeometry, target: Target) -> PackedMatrices | None:
        """The groups to use; None where matrices aren't the input's own, or the caches don't hold a group."""
        out, tensor, rows, columns = geometry.out, geometry.tensor, geometry.rows, geometry.columns
        assert isinstance(out.op, te.ComputeOp) and isinstance(rows, int) and isinstance(columns, int)
        shape = [d for d in out.shape if isinstance(d, int)]
        in_place = [*out.shape[:-2], columns, rows] == list(tensor.shape) and geometry.number == len(out.shape) - 2
        if not in_place or len(shape) != len(out.shape) or len(shape) < 3 or "memory_strides" in out.op.attrs:
            return None
        nbytes = rows * columns * out.dtype.nbytes
        count = LINE_BYTES // math.gcd(nbytes, LINE_BYTES)
        few = math.prod(shape[:-2]) < _SHARES * target.num_cores * count or shape[-3] < count
        if few or count * nbytes > (target.cache_bytes.l1 if count == 1 else target.cache_bytes.l2 // _PART_OF_L2):
            return None
        return PackedMatrices(geometry, count, rows * columns)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over groups, outermost first. `at_once`: see `PackedTiles`."""
        geometry, out = self.geometry, self.geometry.out
        *outer, last, row, column = list(s[out].op.axis)
        group, matrix = s[out].split(last, factor=self.count)
        s[out].pragma(group, "loop_partition_hint")
        _, vector = s[out].split(s[out].fuse(matrix, row, column), factor=geometry.line)
        s[out].vectorize(vector)
        _, packed, blocks, vectors = geometry.copied(s)
        s[packed].compute_at(s[out], group)
        self._prefetch_ahead(s, packed, blocks, vectors)
        return [*outer, group]

    def _prefetch_ahead(self, s: te.Schedule, packed: te.Tensor, blocks: te.IterVar, vectors: te.IterVar) -> None:
        """Prefetch with each tile that is transposed its share of a matrix of the next group."""
        geometry, columns, rows = self.geometry, self.geometry.tensor.shape[-2], self.geometry.tensor.shape[-1]
        assert isinstance(columns, int) and isinstance(rows, int)
        of_block, of_matrix = -(-columns // geometry.lanes), -(-self.size // geometry.line_of_input)
        lines = -(-of_matrix // (of_block * -(-rows // geometry.block)))

        def in_next(*index: PrimExpr) -> Sequence[PrimExpr]:
            matrix = ravel_index(index[:-2], geometry.out.shape[:-2]) + self.count
            tile = blocks.var * of_block + vectors.var
            return (matrix * self.size + tile * (lines * geometry.line_of_input),)

        s[packed].prefetch_line(geometry.tensor, vectors, in_next, lines=lines, to_l1=geometry.to_l1)
