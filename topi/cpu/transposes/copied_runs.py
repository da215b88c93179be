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

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import IterVar, PrimExpr
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.transposes.facts import PAGE_BYTES, TransposeFacts
from relayc.topi.utils import ravel_index

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

    facts: TransposeFacts
    columns: int

    @staticmethod
    def of(facts: TransposeFacts) -> CopiedRuns | Refused:
        """The runs to copy; refused where rows don't conflict in cache sets, or make no whole cache lines."""
        rows, columns = facts.static_sizes
        if not facts.is_of_whole_lines or not all(isinstance(d, int) for d in facts.tensor.shape):
            return Refused("the output is no static matrices of whole cache lines")
        if columns <= _FEW or facts.stride_alignment < _LEAST_ALIGNMENT:
            return Refused(f"{columns} input rows, {facts.row_stride} elements apart, don't conflict in cache sets")
        fits = columns * _LINES * LINE_BYTES <= facts.caches.l2 // _PART_OF_L2
        if not fits or rows < 2 * _LINES * facts.line_of_input:
            return Refused("L2 doesn't hold the runs, or input rows are no longer than two of them")
        return CopiedRuns(facts, columns)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over runs, outermost first. `at_once`: elements computed at a time."""
        facts, out, number = self.facts, self.facts.out, self.facts.number
        axes = list(s[out].op.axis)
        run, within = s[out].split(axes[number], factor=_LINES * facts.line_of_input, tail="shift")
        group, row = s[out].split(within, factor=facts.line_of_input)
        vector = facts.elements_stored(at_once, at_once)
        _, element = s[out].split(s[out].fuse(row, axes[-1]), factor=vector, tail="shift")
        s[out].vectorize(element)
        source, packed, blocks, vectors = facts.copied(s, lines_first=True)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], group)
        s[source].compute_at(s[out], run)
        lines = _LINES - _PREFETCHED_BY_TILES
        facts.prefetch(s, source, s[source].op.axis[facts.position], lines, lines, lambda _: self._end_of_next)
        self._prefetch_with_tiles(s, packed, group, vectors, blocks)
        return [*axes[:number], run]

    def _end_of_next(self, *index: PrimExpr) -> Sequence[PrimExpr]:
        """The flat index of the part of a row's next run that tiles don't prefetch, from a run's begin."""
        *first, begin = index
        later = begin + (_LINES + _PREFETCHED_BY_TILES) * self.facts.line_of_input
        return (ravel_index([*first, later], self.facts.tensor.shape),)

    def _prefetch_with_tiles(
        self, s: te.Schedule, packed: te.Tensor, group: IterVar, vectors: IterVar, blocks: IterVar
    ) -> None:
        """Prefetch with each tile its share of the beginnings of the next runs, one run's after the other's."""
        facts, columns = self.facts, self.columns
        of_group, of_vectors = facts.line_of_input // facts.block, -(-columns // facts.lanes)
        share = -(-columns * _PREFETCHED_BY_TILES // (_LINES * of_group * of_vectors))
        lines = 1 << (share - 1).bit_length()  # so that none reaches from one run into another
        shape, position, last = facts.tensor.shape, facts.position, len(facts.tensor.shape) - 1

        def beginning(first: int) -> Callable[..., Sequence[PrimExpr]]:
            def place(*at: PrimExpr) -> Sequence[PrimExpr]:
                index = facts.read_at(at)
                tile = (group.var * of_vectors + vectors.var) * of_group + blocks.var
                line = tile * lines + first
                begin = index[last] - group.var * facts.line_of_input - blocks.var * facts.block
                index[position] = te.min(line // _PREFETCHED_BY_TILES, columns - 1)
                index[last] = begin + (_LINES + line % _PREFETCHED_BY_TILES) * facts.line_of_input
                return (ravel_index(index, shape),)

            return place

        facts.prefetch(s, packed, blocks, lines, _PREFETCHED_BY_TILES, beginning)
