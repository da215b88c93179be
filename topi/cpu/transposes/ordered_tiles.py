"""Transposes of tensors larger than the caches whose input is streamed in memory order, by blocks of whole rows.

A core reads fastest what is contiguous: then the hardware prefetcher works beside the software prefetches. So a block
of input rows, as many as fill one or two cache lines of each output row, is brought into the L2 cache in order, while
the block before is transposed there, one cache line of each row at a time. A part of the next block is prefetched with
each tile that is transposed in registers, and the previous result is written with non-temporal stores between them:
either in one burst would stall the other.

Where rows are so long that the cache doesn't hold such a block, a block has a piece of each. Prefetches still follow
the rows, one after the other, while the transpose goes across.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr, Var
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.tiling import has_few_fill_buffers
from relayc.topi.cpu.transposes.facts import SHARES, TransposeFacts
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index

__all__ = ["OrderedTiles"]

_LINES, _LINES_IN_SETS = 1, 2
"""Cache lines written of each output row at a time: normally, and where output or input rows conflict in cache sets.
(GB/s by one and by two: output rows at odd multiples of 64 to 256 bytes 46 to 50 and 36 to 40, at multiples of 512
bytes 25 and 35 to 42; by three 31 to 39.)"""
_LINES_FEW_BUFFERS = (4, 2)
"""Cache lines written, the most that the L2 cache has room for, of rows that begin anywhere, where L1 has few line-fill
buffers and input rows conflict in cache sets. (Zen 4, AVX-512, by two and by four, GB/s: rows of 256 floats 29 and 33,
of 512 25 and 28, of 1024 20 and 22 to 26; by one and by two: of 2048 15 and 18. AVX2 alike.)"""
_WIDE_NBYTES = 4
"""Least element size in bytes for two cache lines where rows begin anywhere and one more line is transposed in vain.
(GB/s, by one and by two: rows of 400 odd columns, float32 40 and 46, float16 43 and 37, bytes 36 and 29.)"""
_BLOCKS_OF_CACHE = 3
"""Blocks that an L2 cache holds: one that is transposed, one that arrives, and room for the rest."""
_LEAST_PIECE_BYTES, _PIECE_BYTES = 512, 2048
"""Fewest and most bytes of an input row in a piece, where a block of whole rows doesn't fit: in C 0.5 to 4 KB were
alike."""
_MOST_REPEATED = 17 / 16
"""Most that all pieces of a row have together, relative to the row. (Rows of 784 floats by two pieces of 448: 29 to 26
GB/s.)"""
_PART_OF_L2 = 8
"""Blocks of pieces are at most this fraction (1 / n) of the L2 cache, since pieces that lie pages apart conflict in its
sets. (Bytes, pieces of 1 instead of 2 KB: 26 to 32 GB/s.)"""
_LEAST_BELOW = 8
"""Fewest blocks below each other to take pieces down the rows: nothing is prefetched where their next column begins.
(Beside each other instead, 16384 x 4096 bytes 34 to 29 GB/s, others alike.)"""
_LINES_AT_ONCE = 4
"""Cache lines that one prefetch covers, contiguous; pieces are multiples of them."""


@dataclass(frozen=True, slots=True)
class OrderedTiles:
    """Blocks of `width` elements along the output's last axis, each by tiles of a cache line along `facts.number`.

    `inside` are the output's axes whose loops run within a block; none where a block is a `piece`, in elements, of each
    row only. Tiles are copied before they are transposed where they conflict in sets of the L1 cache and would be
    evicted.
    """

    facts: TransposeFacts
    width: int
    inside: tuple[int, ...]
    piece: int | None

    @staticmethod
    def of(facts: TransposeFacts) -> OrderedTiles | Refused:
        """The blocks to use; refused where input rows are short, or not even pieces of them fit into the L2 cache."""
        sizes = [*facts.out.shape, *facts.tensor.shape[facts.position + 1 :]]
        nbytes, l2, cores = facts.row_stride * facts.tensor.dtype.nbytes, facts.caches.l2, facts.target.num_cores
        rows, columns = facts.static_sizes
        if not all(isinstance(d, int) for d in sizes) or rows < 2 * facts.line_of_input:
            return Refused("sizes are dynamic, or input rows shorter than two cache lines")
        if facts.has_unaligned_rows and facts.has_gaps:
            return Refused("unaligned output rows with gaps between them")
        width = max(_lines_written(facts, nbytes, l2) * facts.line, facts.lanes)
        many = columns >= SHARES * cores * width
        if many and _BLOCKS_OF_CACHE * width * nbytes <= l2:
            return OrderedTiles(facts, width, _axes_inside(facts), None)
        if facts.has_unaligned_rows:
            width = max(width, _LINES_IN_SETS * facts.line)
        else:  # blocks of about equal size
            width = -(-columns // (max(columns // width, 1) * facts.line)) * facts.line
            many = constant_size(facts.out.shape) >= SHARES * cores * width * _PIECE_BYTES
        piece = _piece(facts, width, l2)
        if not many or piece is None:
            return Refused(f"{columns} columns are few, or L2 doesn't hold pieces of {width} input rows")
        return OrderedTiles(facts, width, (), piece)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a tile, outermost first.

        `at_once` elements are computed together, at least a cache line of them and at most what a block has of a row.
        """
        facts, out = self.facts, self.facts.out
        axes = list(s[out].op.axis)
        row, pieces = axes[facts.number], []
        if self.piece is not None:
            piece, row = s[out].split(row, factor=self.piece, tail="shift")
            pieces = [piece]
        tile, row = s[out].split(row, factor=facts.line_of_input, tail="shift")
        group, row = s[out].split(row, factor=facts.block)
        if facts.has_unaligned_rows:
            part, (vector, column) = facts.split_columns(s, self.width)
        else:
            part, column = s[out].split(axes[-1], factor=self.width, tail="shift")
            fits = at_once % facts.line == 0 and self.width % at_once == 0
            vector, column = s[out].split(column, factor=at_once if fits else facts.line)
        outside = [axis for n, axis in enumerate(axes[:-1]) if n != facts.number and n not in self.inside]
        loops = [*outside, *([part, *pieces] if self.along else [*pieces, part]), *[axes[n] for n in self.inside]]
        s[out].reorder(*loops, tile, group, row, vector, column)
        s[out].vectorize(column)
        s[out].pragma(tile, "overlap_iterations")
        source, packed, _, vectors = facts.copied(s, lines_first=facts.has_set_conflicts)
        s[packed].compute_at(s[out], tile)
        if facts.has_set_conflicts:
            s[source].compute_at(s[out], tile)
        for_columns = self.width * facts.block // facts.line_of_input
        vectors_of_columns = -(-self._lines_transposed() // facts.lanes)
        lines = -(-for_columns // vectors_of_columns)
        together = lines if self.piece is None else _LINES_AT_ONCE
        facts.prefetch(s, packed, vectors, lines, together, partial(self._in_next_block, vectors.var, lines))
        return loops

    @property
    def along(self) -> bool:
        """Whether the next piece is that of the same rows, since few blocks are below."""
        return self.facts.static_sizes[1] < _LEAST_BELOW * self.width

    def _lines_transposed(self) -> int:
        return self.width + (self.facts.line if self.facts.has_unaligned_rows else 0)

    def _in_next_block(self, vector: Var, lines: int, first_line: int) -> Callable[..., Sequence[PrimExpr]]:
        """The index function of `lines` of the next block, from `first_line` on, prefetched with a `vector`.

        They lie as far into that block, in memory order, as the vector's columns do in theirs, one vector's behind the
        other's.
        """
        facts, transposed_lines = self.facts, self._lines_transposed()
        shape, position, last = facts.tensor.shape, facts.position, len(facts.tensor.shape) - 1

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            index = facts.read_at(first)
            index[position] = index[position] - te.min(vector * facts.lanes, transposed_lines - facts.lanes)
            further = (vector * lines + first_line) * facts.line_of_input
            if self.piece is not None:
                piece, within = index[last] // self.piece, index[last] % self.piece * self.width + further
                line = ravel_index([*index[:last], 0], shape) + within // self.piece * facts.row_stride
                below, pieces = self.width * facts.row_stride, -(-constant_size(shape[last:]) // self.piece)
                beside = te.if_then_else(piece < pieces - 1, (piece + 1) * self.piece, below)
                following = beside if self.along else below + piece * self.piece
                return (line + following + within % self.piece,)
            index[position] = index[position] + transposed_lines
            begin = ravel_index(index[: position + 1], shape[: position + 1]) * facts.row_stride
            return (begin + ravel_index(index[position + 1 :], shape[position + 1 :]) * self.width + further,)

        return place


def _lines_written(facts: TransposeFacts, nbytes: int, l2: int) -> int:
    """Cache lines of each output row that a block fills, where whole input rows have `nbytes` bytes each."""
    if not facts.has_unaligned_rows:  # rows of two cache lines are contiguous
        whole = facts.static_sizes[1] == _LINES_IN_SETS * facts.line
        return _LINES_IN_SETS if facts.result_has_set_conflicts or whole else _LINES
    wide = facts.out.dtype.nbytes >= _WIDE_NBYTES
    if wide and facts.has_set_conflicts and has_few_fill_buffers(facts.target):
        return next((n for n in _LINES_FEW_BUFFERS if _BLOCKS_OF_CACHE * n * facts.line * nbytes <= l2), _LINES)
    fits = _LINES_IN_SETS * facts.line * nbytes <= l2 // _PART_OF_L2
    return _LINES_IN_SETS if fits and (facts.has_set_conflicts or wide) else _LINES


def _piece(facts: TransposeFacts, width: int, l2: int) -> int | None:
    """Elements of a piece of each of `width` rows; None where the L2 cache holds too few.

    The last piece of a row is shifted to end with the row: the size that overlaps least, none where the overlap is
    large.
    """
    size, unit = facts.tensor.dtype.nbytes, _LINES_AT_ONCE * facts.line_of_input
    length, most = constant_size(facts.tensor.shape[-1:]), min(_PIECE_BYTES, l2 // (_PART_OF_L2 * width)) // size
    pieces = range(most // unit * unit, _LEAST_PIECE_BYTES // size - 1, -unit)
    fitting = {piece: -(-length // piece) * piece for piece in pieces}
    best = min(fitting, key=fitting.__getitem__, default=0)
    return best if 0 < best <= length and fitting[best] <= _MOST_REPEATED * length else None


def _axes_inside(facts: TransposeFacts) -> tuple[int, ...]:
    """The output's axes, but for the exchanged ones, along which the input's dimensions behind `position` are read."""
    assert isinstance(facts.out.op, te.ComputeOp)
    behind = [i for read, index in reads(facts.out.op) if read is facts.tensor
              for i in index[facts.position + 1 :]]  # fmt: skip
    variables = {e for e in post_order(behind) if isinstance(e, Var)}
    axes = enumerate(facts.out.op.axis)
    return tuple([n for n, axis in axes if n != facts.number and axis.var in variables])
