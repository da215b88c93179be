"""Transposes larger than the caches whose results are packed in one before they are stored, by whole cache lines.

Result rows that begin anywhere share cache lines with each other, but blocks of some of them, whole matrices or groups
of these don't. While one is transposed, the input of the next is prefetched in memory order, a share with each tile:
hardware prefetchers can't follow so many streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import IterVar, PrimExpr, Var, const
from relayc.topi.cpu.prefetch import LINE_BYTES, PAGE_BYTES, rows_of_whole_lines
from relayc.topi.cpu.tiling import has_high_latency_llc
from relayc.topi.cpu.transposes.facts import SHARES, TransposeFacts
from relayc.topi.groups import constant_size, is_static
from relayc.topi.utils import ravel_index

__all__ = ["CopiedRuns", "PackedBlocks", "PackedMatrices"]

_WHOLE_SHARE = 2 / 5
"""Largest matrix that is prefetched whole, as a share of the L2 cache: the one that is transposed stays there, too."""
_WHOLE_SHARE_HIGH_LATENCY, _LEAST_PIECE = 4 / 5, 1024
"""For unaligned rows with a high-latency LLC: largest matrix that is prefetched whole, as a share of the L2 cache, and
least bytes of pieces, each on another page."""
_PIECE_BYTES, _PART_OF_L2 = 2048, 8
"""Most bytes of each row of larger matrices that are prefetched together; all pieces, or all copied runs, take at most
1 / 8 of the L2 cache, and what is transposed meanwhile as much."""
_BLOCK_SHARE_OF_CACHE = 3 / 32
"""Largest block as a share of the L2 cache, which holds two blocks of the result."""
_LEAST_NBYTES = 4
"""Least element size in bytes for larger matrices: a block of narrower elements has more rows, which a tile takes
together, than the L1 cache holds."""
_VECTOR_BYTES = 32
"""Bytes of the vectors that whole matrices are transposed into: a tile of longer ones has more rows than stay in the L1
cache."""
_MOST_BYTES = 8192
"""Largest block of whole cache lines in bytes: L1 caches of 32 to 48 KB hold it, and two of the result, in half of
their size."""
_SHORT_BYTES, _SHARE_OF_L1 = 512, 4
"""Matrices that fit in L1 are done by blocks where their rows are shorter than so many bytes, and they take more than 1
/ n of it: ordered tiles, and whole matrices, are faster otherwise."""
_MOST_BLOCKS, _FEWEST_BLOCKS = 128, 4
"""Most and fewest blocks in one loop: the last block is stored while nothing is transposed."""


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Blocks of `height` result rows of a matrix, `loop` rows of them in one loop, are packed one after the other.

    A block is written while the next one is transposed, a share of it with each few input rows, so that reads and
    writes overlap. `piece` elements of each input row, a multiple of the height, are prefetched together; a whole
    matrix where it is None.
    """

    facts: TransposeFacts
    height: int
    loop: int
    piece: int | None

    @staticmethod
    def of(facts: TransposeFacts) -> PackedBlocks | Refused:
        """The blocks to use; refused where matrices are no whole cache lines, or small, or blocks too large."""
        if not facts.is_of_matrices or not facts.is_of_whole_lines:
            return Refused("the output is no static matrices of the input, of whole cache lines each")
        (rows, columns), caches = facts.static_sizes, facts.caches
        size, of_result = facts.tensor.dtype.nbytes, facts.out.dtype.nbytes
        height, widest = max(facts.line, facts.line_of_input), max(size, of_result)
        if height * columns * widest > _BLOCK_SHARE_OF_CACHE * caches.l2:
            return Refused(f"L2 doesn't hold blocks of {height} rows of {columns}")
        matrices = constant_size(facts.out.shape[:-2])
        loops = max(-(-rows // (_MOST_BLOCKS * height)), -(-SHARES * facts.target.num_cores // matrices))
        loop = min(-(-rows // (loops * height)) * height, rows)
        if loop < _FEWEST_BLOCKS * height or rows * columns * widest <= caches.l1 // _SHARE_OF_L1:
            return Refused(f"matrices of {rows} x {columns} have few blocks of {height} rows")
        if rows * size >= _SHORT_BYTES and rows * columns * widest <= caches.l1:
            return Refused("L1 holds a matrix, whose input rows are long")
        are_lines = columns % facts.line == 0  # which ordered tiles support as well
        high_latency = has_high_latency_llc(facts.target)
        share = _WHOLE_SHARE_HIGH_LATENCY if high_latency and not are_lines else _WHOLE_SHARE
        if rows * columns * widest <= share * caches.l2:
            if are_lines and height * columns * widest > _MOST_BYTES:
                return Refused(f"output rows are whole cache lines, blocks of them over {_MOST_BYTES} bytes")
            return PackedBlocks(replace(facts, lanes=min(facts.lanes, _VECTOR_BYTES // size)), height, loop, None)
        if are_lines or min(size, of_result) < _LEAST_NBYTES or not facts.is_all_read:
            return Refused("L2 doesn't hold a matrix, whose rows are whole cache lines, narrow or fused with others")
        most = min(_PIECE_BYTES, caches.l2 // (_PART_OF_L2 * columns)) // size
        piece = height << max((min(most, rows) // height).bit_length() - 1, 0)
        if high_latency and piece * size < _LEAST_PIECE:
            return Refused(f"pieces of {piece * size} bytes, each on another page, with a high-latency LLC")
        return PackedBlocks(facts, height, loop, piece)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of blocks, outermost first."""
        facts, out = self.facts, self.facts.out
        *outer, row, column = s[out].op.axis
        loop, row = s[out].split(row, factor=self.loop, tail="shift")
        row_block, row = s[out].split(row, factor=self.height, tail="shift")
        if facts.is_all_read:
            lines = self.height * facts.static_sizes[1] // facts.line
            share = -(-lines // self._vectors) * facts.line
            _, column = s[out].split(s[out].fuse(row, column), factor=share, tail="shift")
            s[out].pragma(row_block, "overlap_iterations", "apart")
        facts.store(s, column, facts.line)
        _, packed, blocks, vectors = facts.copied(s)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], row_block)
        lines = max(facts.lanes * facts.block // facts.line_of_input, 1)
        together = lines if self.piece is None else min(lines, self.piece // facts.line_of_input)
        facts.prefetch(s, packed, blocks, lines, together, partial(self._prefetched, vectors.var, blocks.var, lines))
        return [*outer, loop]

    @property
    def _vectors(self) -> int:
        """Vectors that a row of the result takes."""
        return -(-self.facts.static_sizes[1] // self.facts.lanes)

    def _prefetched(self, vector: Var, block: Var, lines: int, first_line: int) -> Callable[..., Sequence[PrimExpr]]:
        """The index function of a tile's share of the next piece or matrix: `lines` cache lines, from `first_line` on.

        Shares are contiguous in memory, in the order of the tiles.
        """
        facts, (_, columns), line_of_input = self.facts, self.facts.static_sizes, self.facts.line_of_input
        blocks, matrix = -(-self.height // facts.block), columns * facts.row_stride

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            *outer, _, row = facts.read_at(first)
            begin = const(0) if self.piece is None else row // self.piece * self.piece
            row_block = (row - block * facts.block - begin + self.height - 1) // self.height
            line = ((row_block * self._vectors + vector) * blocks + block) * lines + first_line
            if self.piece is None:
                return (ravel_index([*outer, columns, 0], facts.tensor.shape) + line * line_of_input,)
            further = te.if_then_else(begin + self.piece < facts.row_stride, begin + self.piece, matrix)
            of_piece = self.piece // line_of_input
            at = ravel_index([*outer, te.min(line // of_piece, columns - 1), 0], facts.tensor.shape)
            return (at + further + line % of_piece * line_of_input,)

        return place


_MATRICES_OF_L2 = 4
"""Matrices that are stored together take at most this fraction (1 / n) of the L2 cache: so do the next ones."""


@dataclass(frozen=True, slots=True)
class PackedMatrices:
    """Groups of `count` matrices, of `size` elements each, along the last of the batch dimensions, are packed.

    One that is whole cache lines stays in L1, otherwise as many as are whole lines together, 64 at most, in L2.
    """

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
        if few or count * nbytes > (facts.caches.l1 if count == 1 else facts.caches.l2 // _MATRICES_OF_L2):
            return Refused(f"matrices of {nbytes} bytes are few, or the caches don't hold {count} together")
        return PackedMatrices(facts, count, rows * columns)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Schedule the output; returns the loops over groups, outermost first."""
        facts, out, (rows, columns) = self.facts, self.facts.out, self.facts.static_sizes
        *outer, last, row, column = list(s[out].op.axis)
        group, matrix = s[out].split(last, factor=self.count)
        s[out].pragma(group, "loop_partition_hint")
        facts.store(s, s[out].fuse(matrix, row, column), facts.line, tail="guard")
        _, packed, blocks, vectors = facts.copied(s)
        s[packed].compute_at(s[out], group)
        of_block, of_matrix = -(-columns // facts.lanes), -(-self.size // facts.line_of_input)
        lines = -(-of_matrix // (of_block * -(-rows // facts.block)))

        def in_next(*index: PrimExpr) -> Sequence[PrimExpr]:
            matrix = ravel_index(index[:-2], facts.out.shape[:-2]) + self.count
            tile = blocks.var * of_block + vectors.var
            return (matrix * self.size + tile * (lines * facts.line_of_input),)

        facts.prefetch(s, packed, vectors, lines, lines, lambda _: in_next)
        return [*outer, group]


_LINES_OF_RUN, _PREFETCHED_BY_TILES = 8, 4
"""Cache lines of a run, and those of the next run that tiles prefetch. (Runs of 4 were slower, runs of 16 equal.)"""
_LEAST_ALIGNMENT = PAGE_BYTES // 2
"""Bytes: rows whose distance is a multiple of this are copied; others stay in the caches."""
_FEW = 24
"""Up to so many rows stay in the caches, too."""


@dataclass(frozen=True, slots=True)
class CopiedRuns:
    """Runs of `columns` input rows that conflict in cache sets are copied, and transposed a line of each at a time.

    Planes of an image lie pages apart where its sides are multiples of 64 or so. On the way to channels-last a cache
    line of each would be evicted before it is used up, so runs are copied to where they don't alias. Half of each next
    run is prefetched while runs are copied, half with the tiles that are transposed.
    """

    facts: TransposeFacts
    columns: int

    @staticmethod
    def of(facts: TransposeFacts) -> CopiedRuns | Refused:
        """The runs to copy; refused where rows don't conflict in cache sets, or make no whole cache lines."""
        rows, columns = facts.static_sizes
        if not facts.is_of_whole_lines or not is_static(facts.tensor.shape):
            return Refused("the output is no static matrices of whole cache lines")
        if columns <= _FEW or facts.stride_alignment < _LEAST_ALIGNMENT:
            return Refused(f"{columns} input rows, {facts.row_stride} elements apart, don't conflict in cache sets")
        fits = columns * _LINES_OF_RUN * LINE_BYTES <= facts.caches.l2 // _PART_OF_L2
        if not fits or rows < 2 * _LINES_OF_RUN * facts.line_of_input:
            return Refused("L2 doesn't hold the runs, or input rows are no longer than two of them")
        return CopiedRuns(facts, columns)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Schedule the output; returns the loops over runs, outermost first."""
        facts, out, number = self.facts, self.facts.out, self.facts.number
        axes = list(s[out].op.axis)
        run, within = s[out].split(axes[number], factor=_LINES_OF_RUN * facts.line_of_input, tail="shift")
        group, row = s[out].split(within, factor=facts.line_of_input)
        facts.store(s, s[out].fuse(row, axes[-1]), facts.elements_stored(facts.at_once))
        source, packed, blocks, vectors = facts.copied(s, lines_first=True)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], group)
        s[source].compute_at(s[out], run)
        lines = _LINES_OF_RUN - _PREFETCHED_BY_TILES
        facts.prefetch(s, source, s[source].op.axis[facts.position], lines, lines, lambda _: self._end_of_next)
        self._prefetch_with_tiles(s, packed, group, vectors, blocks)
        return [*axes[:number], run]

    def _end_of_next(self, *index: PrimExpr) -> Sequence[PrimExpr]:
        """The flat index of the part of a row's next run that tiles don't prefetch, from a run's begin."""
        *first, begin = index
        later = begin + (_LINES_OF_RUN + _PREFETCHED_BY_TILES) * self.facts.line_of_input
        return (ravel_index([*first, later], self.facts.tensor.shape),)

    def _prefetch_with_tiles(
        self, s: te.Schedule, packed: te.Tensor, group: IterVar, vectors: IterVar, blocks: IterVar
    ) -> None:
        """Prefetch with each tile its share of the beginnings of the next runs, one run's after the other's."""
        facts, columns = self.facts, self.columns
        of_group, of_vectors = facts.line_of_input // facts.block, -(-columns // facts.lanes)
        share = -(-columns * _PREFETCHED_BY_TILES // (_LINES_OF_RUN * of_group * of_vectors))
        lines = 1 << (share - 1).bit_length()  # so that none reaches from one run into another
        shape, position, last = facts.tensor.shape, facts.position, len(facts.tensor.shape) - 1

        def beginning(first: int, *at: PrimExpr) -> Sequence[PrimExpr]:
            index = facts.read_at(at)
            tile = (group.var * of_vectors + vectors.var) * of_group + blocks.var
            line = tile * lines + first
            begin = index[last] - group.var * facts.line_of_input - blocks.var * facts.block
            index[position] = te.min(line // _PREFETCHED_BY_TILES, columns - 1)
            index[last] = begin + (_LINES_OF_RUN + line % _PREFETCHED_BY_TILES) * facts.line_of_input
            return (ravel_index(index, shape),)

        facts.prefetch(s, packed, blocks, lines, _PREFETCHED_BY_TILES, lambda first: partial(beginning, first))
