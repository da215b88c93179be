"""Transposes of large tensors into short rows, where the input's rows conflict in cache sets: packed in runs first.

Planes of an image lie pages apart where its sides are multiples of 64 or so. On the way to channels-last a cache line
of each plane would be evicted before it is used up. So a run of each input row is copied, one behind the other, to
where the runs don't alias, and transposed from there into whole cache lines of the result. The next runs are prefetched
meanwhile, one after the other, because hardware prefetchers can't follow so many streams: half of each run while runs
are copied, half with the tiles that are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import IterVar, PrimExpr
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.transposes.geometry import PAGE_BYTES, TransposeGeometry
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["CopiedRuns"]

_LINES, _PREFETCHED_BY_TILES = 8, 4
"""Cache lines of a run, and those of the next run that tiles prefetch. (Runs of 4 were slower, runs of 16 equal.)"""
_LEAST_ALIGNMENT = PAGE_BYTES // 2
"""Bytes: rows whose distance is a multiple of this are copied; others stay in the caches. (128 rows of float16 at
multiples of 512 bytes reach 86 % of a copy's bandwidth directly, 69 % when copied.)"""
_FEW = 24
"""Up to so many rows stay in the caches, too (88 % of a copy's bandwidth directly, 78 % when copied)."""
_PART_OF_L2 = 8
"""All runs take at most this fraction (1 / n) of the L2 cache, and the next runs as much."""


@dataclass(frozen=True, slots=True)
class CopiedRuns:
    """Runs of `columns` input rows, transposed a cache line of each at a time."""

    geometry: TransposeGeometry
    columns: int

    @staticmethod
    def of(geometry: TransposeGeometry, target: Target) -> CopiedRuns | None:
        """The runs to copy; None where rows don't conflict in cache sets, or all of them make no whole cache lines."""
        rows, columns, out = geometry.rows, geometry.columns, geometry.out
        assert isinstance(rows, int) and isinstance(columns, int)
        whole = geometry.number == len(out.shape) - 2 and rows * columns * out.dtype.nbytes % LINE_BYTES == 0
        shares = columns > _FEW and geometry.stride_alignment >= _LEAST_ALIGNMENT
        fits = columns * _LINES * LINE_BYTES <= target.cache_bytes.l2 // _PART_OF_L2
        if not whole or not shares or not fits or rows < 2 * _LINES * geometry.line_of_input:
            return None
        return CopiedRuns(geometry, columns) if all(isinstance(d, int) for d in geometry.tensor.shape) else None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over runs, outermost first. `at_once`: elements computed at a time."""
        geometry, out, number = self.geometry, self.geometry.out, self.geometry.number
        assert isinstance(out.op, te.ComputeOp)
        axes = out.op.axis
        run, within = s[out].split(axes[number], factor=_LINES * geometry.line_of_input, tail="shift")
        group, row = s[out].split(within, factor=geometry.line_of_input)
        vector = at_once if at_once % geometry.line == 0 else geometry.line
        _, element = s[out].split(s[out].fuse(row, axes[-1]), factor=vector, tail="shift")
        s[out].vectorize(element)
        source, packed, blocks, vectors = geometry.copied(s, lines_first=True)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], group)
        s[source].compute_at(s[out], run)
        s[source].prefetch_line(
            geometry.tensor, s[source].op.axis[geometry.position], self._end_of_next,
            lines=_LINES - _PREFETCHED_BY_TILES, to_l1=geometry.to_l1,
        )
        self._prefetch_with_tiles(s, packed, group, vectors, blocks)
        return [*axes[:number], run]

    def _end_of_next(self, *index: PrimExpr) -> Sequence[PrimExpr]:
        """The flat index of the part of a row's next run that tiles don't prefetch, from a run's begin."""
        *first, begin = index
        later = begin + (_LINES + _PREFETCHED_BY_TILES) * self.geometry.line_of_input
        return (ravel_index([*first, later], self.geometry.tensor.shape),)

    def _prefetch_with_tiles(
        self, s: te.Schedule, packed: te.Tensor, group: IterVar, vectors: IterVar, blocks: IterVar
    ) -> None:
        """Prefetch with each tile its share of the beginnings of the next runs, one run's after the other's."""
        geometry, columns = self.geometry, self.columns
        of_group, of_vectors = geometry.line_of_input // geometry.block, -(-columns // geometry.lanes)
        share = -(-columns * _PREFETCHED_BY_TILES // (_LINES * of_group * of_vectors))
        lines = 1 << (share - 1).bit_length()  # so that none reaches from one run into another
        shape, position, last = geometry.tensor.shape, geometry.position, len(geometry.tensor.shape) - 1

        def beginning(first: int) -> Callable[..., Sequence[PrimExpr]]:
            def place(*at: PrimExpr) -> Sequence[PrimExpr]:
                index = geometry.read_at(at)
                tile = (group.var * of_vectors + vectors.var) * of_group + blocks.var
                line = tile * lines + first
                begin = index[last] - group.var * geometry.line_of_input - blocks.var * geometry.block
                index[position] = te.min(line // _PREFETCHED_BY_TILES, columns - 1)
                index[last] = begin + (_LINES + line % _PREFETCHED_BY_TILES) * geometry.line_of_input
                return (ravel_index(index, shape),)

            return place

        for first in range(0, lines, _PREFETCHED_BY_TILES):
            at_once = min(lines, _PREFETCHED_BY_TILES)
            s[packed].prefetch_line(geometry.tensor, blocks, beginning(first), lines=at_once, to_l1=geometry.to_l1)
