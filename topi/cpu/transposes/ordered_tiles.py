"""Transpositions beyond the caches whose input is read in the order of memory, by blocks of whole lines.

A core reads fastest what lies in one piece: then the processor fetches ahead by itself, beside what is asked for. So
a block of the input's lines, as many as fill one or two cache lines of each line of the output, is brought into the
second-level cache in order, while the block before is turned there, strip by strip. A part of the next block is asked
for with each tile that is turned in registers, and a part of the strip before is stored past the caches with each few
columns of them: all at once, either would keep the other, and what is turned, waiting.

Of lines so long that the cache doesn't hold such a block, a block has a piece of each. What is asked for still follows
these, one after the other, while what is turned goes across.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import PrimExpr, Var
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.transposes.geometry import TransposeGeometry
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["OrderedTiles"]

_LINES, _LINES_IN_SETS = 1, 2
"""Cache lines that are written of each of the output's lines at a time, and where these, or the input's, share sets.
(GB/s by one and by two where the output's lines are apart by odd multiples of 64 to 256 bytes 46 to 50 and 36 to 40,
by multiples of 512 bytes 25 and 35 to 42; by three 31 to 39.)"""
_LINES_OF_FEW = (4, 2)
"""As many, the most that the cache has room for, of lines that begin anywhere, where a core waits for few lines and the
input's share sets. (Zen 4, AVX-512, by two and by four, GB/s: lines of 256 floats 29 and 33, of 512 25 and 28, of 1024
20 and 22 to 26; by one and by two: of 2048 15 and 18. AVX2 alike.)"""
_WIDE_NBYTES = 4
"""Of elements of which two are written where one more is turned in vain. (GB/s, by one and by two: lines of 400 odd
columns, float32 40 and 46, float16 43 and 37, bytes 36 and 29.)"""
_BLOCKS_OF_CACHE = 3
"""Blocks that a second-level cache holds: one that is turned, one that arrives, and what else comes along."""
_SHARES = 4
"""Blocks for each core, at least."""
_LEAST_PIECE_BYTES, _PIECE_BYTES = 512, 2048
"""Of the input's lines, fewest and most, where a block of whole ones doesn't fit: in C 0.5 to 4 KB were alike."""
_MOST_REPEATED = 17 / 16
"""As much of a line as all its pieces have at most. (Lines of 784 floats by two pieces of 448: 29 to 26 GB/s.)"""
_PART_OF_L2 = 8
"""Blocks of pieces are at most this part of the second-level cache, since pieces that lie pages apart share its sets.
(Bytes, pieces of 1 instead of 2 KB: 26 to 32 GB/s.)"""
_LEAST_BELOW = 8
"""Blocks of lines, of which pieces are taken down the lines: nothing is asked for where the next column of them begins.
(Beside each other instead, 16384 x 4096 bytes 34 to 29 GB/s, others alike.)"""
_LINES_AT_ONCE = 4
"""Cache lines that are asked for as one piece of memory; pieces are multiples of them."""


@dataclass(frozen=True, slots=True)
class OrderedTiles:
    """Blocks of `width` places along the last axis of the output, taken by strips of a cache line of its other axis.

    `inside` are the output's axes that run within a block beside; none where a block is a `piece` of each line only, of
    so many elements. Strips are copied before they are turned where they share sets of the first-level cache, in which
    they would not stay.
    """

    turn: TransposeGeometry
    width: int
    inside: tuple[int, ...]
    piece: int | None

    @staticmethod
    def of(turn: TransposeGeometry, target: Target) -> OrderedTiles | None:
        """None where lines of the input are short, or not even pieces of them fit into the second-level cache."""
        sizes = [*turn.out.shape, *turn.tensor.shape[turn.position + 1 :]]
        nbytes, l2 = turn.apart * turn.tensor.dtype.nbytes, target.cache_bytes.l2
        rows, columns = constant_size([turn.rows]), constant_size([turn.columns])
        if not all(isinstance(d, int) for d in sizes) or rows < 2 * turn.line_of_input:
            return None
        if turn.begins_anywhere and "memory_strides" in turn.out.op.attrs:
            return None
        width = max(_lines_written(turn, nbytes, l2) * turn.line, turn.lanes)
        many = columns >= _SHARES * target.num_cores * width
        if many and _BLOCKS_OF_CACHE * width * nbytes <= l2:
            return OrderedTiles(turn, width, _axes_inside(turn), None)
        if turn.begins_anywhere:
            width = max(width, _LINES_IN_SETS * turn.line)
        else:  # blocks about even
            width = -(-columns // (max(columns // width, 1) * turn.line)) * turn.line
            many = constant_size(turn.out.shape) >= _SHARES * target.num_cores * width * _PIECE_BYTES
        piece = _piece(turn, width, l2)
        return OrderedTiles(turn, width, (), piece) if many and piece is not None else None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a strip, outermost first.

        So many elements are computed `at_once`, at least a cache line of them and at most what a block has of a line.
        """
        turn, out = self.turn, self.turn.out
        axes = list(s[out].op.axis)
        row, pieces = axes[turn.number], []
        if self.piece is not None:
            piece, row = s[out].split(row, factor=self.piece, tail="shift")
            pieces = [piece]
        strip, row = s[out].split(row, factor=turn.line_of_input, tail="shift")
        group, row = s[out].split(row, factor=turn.block)
        if turn.begins_anywhere:
            part, (vector, column) = turn.split_columns(s, self.width)
        else:
            part, column = s[out].split(axes[-1], factor=self.width, tail="shift")
            fits = at_once % turn.line == 0 and self.width % at_once == 0
            vector, column = s[out].split(column, factor=at_once if fits else turn.line)
        outside = [axis for n, axis in enumerate(axes[:-1]) if n != turn.number and n not in self.inside]
        loops = [*outside, *([part, *pieces] if self.along else [*pieces, part]), *[axes[n] for n in self.inside]]
        s[out].reorder(*loops, strip, group, row, vector, column)
        s[out].vectorize(column)
        s[out].pragma(strip, "overlap_iterations")
        source, packed, _, vectors = turn.copied(s, lines_first=turn.has_set_conflicts)
        s[packed].compute_at(s[out], strip)
        if turn.has_set_conflicts:
            s[source].compute_at(s[out], strip)
        for_columns = self.width * turn.block // turn.line_of_input
        vectors_of_columns = -(-self._lines_transposed() // turn.lanes)
        lines = -(-for_columns // vectors_of_columns)
        together = lines if self.piece is None else _LINES_AT_ONCE
        for first in range(0, lines, together):
            place = self._in_next_block(vectors.var, lines, first)
            s[packed].prefetch_line(
                turn.tensor, vectors, place, lines=min(together, lines - first), to_l1=turn.near
            )
        return loops

    @property
    def along(self) -> bool:
        """Is the next piece that of the same lines, since few blocks are below?"""
        return constant_size([self.turn.columns]) < _LEAST_BELOW * self.width

    def _lines_transposed(self) -> int:
        return self.width + (self.turn.line if self.turn.begins_anywhere else 0)

    def _in_next_block(self, vector: Var, lines: int, first_line: int) -> Callable[..., Sequence[PrimExpr]]:
        """Where the next block's cache `lines` begin, from `first_line` on, that are asked for with some `vector`.

        They lie as far into that block, in the order of memory, as the vector's columns do in theirs, one vector's
        behind the other's.
        """
        turn, turned = self.turn, self._lines_transposed()
        shape, position, last = turn.tensor.shape, turn.position, len(turn.tensor.shape) - 1

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            index = turn.read_at(first)
            index[position] = index[position] - te.min(vector * turn.lanes, turned - turn.lanes)
            further = (vector * lines + first_line) * turn.line_of_input
            if self.piece is not None:
                piece, within = index[last] // self.piece, index[last] % self.piece * self.width + further
                line = ravel_index([*index[:last], 0], shape) + within // self.piece * turn.apart
                below, pieces = self.width * turn.apart, -(-constant_size(shape[last:]) // self.piece)
                beside = te.if_then_else(piece < pieces - 1, (piece + 1) * self.piece, below)
                following = beside if self.along else below + piece * self.piece
                return (line + following + within % self.piece,)
            index[position] = index[position] + turned
            begin = ravel_index(index[: position + 1], shape[: position + 1]) * turn.apart
            return (begin + ravel_index(index[position + 1 :], shape[position + 1 :]) * self.width + further,)

        return place


def _lines_written(turn: TransposeGeometry, nbytes: int, l2: int) -> int:
    """Cache lines that blocks of whole lines of the input, of so many bytes, fill of each of the output's."""
    if not turn.begins_anywhere:  # results of two lines are one piece of memory
        whole = constant_size([turn.columns]) == _LINES_IN_SETS * turn.line
        return _LINES_IN_SETS if turn.result_has_set_conflicts or whole else _LINES
    wide = turn.out.dtype.nbytes >= _WIDE_NBYTES
    if wide and turn.has_set_conflicts and not turn.near:
        return next((n for n in _LINES_OF_FEW if _BLOCKS_OF_CACHE * n * turn.line * nbytes <= l2), _LINES)
    near = _LINES_IN_SETS * turn.line * nbytes <= l2 // _PART_OF_L2
    return _LINES_IN_SETS if near and (turn.has_set_conflicts or wide) else _LINES


def _piece(turn: TransposeGeometry, width: int, l2: int) -> int | None:
    """So many elements of each of `width` lines; None where the second-level cache holds too few.

    The last piece of a line is shifted: so many that this repeats little, none where it repeats much.
    """
    size, unit = turn.tensor.dtype.nbytes, _LINES_AT_ONCE * turn.line_of_input
    length, most = constant_size(turn.tensor.shape[-1:]), min(_PIECE_BYTES, l2 // (_PART_OF_L2 * width)) // size
    pieces = range(most // unit * unit, _LEAST_PIECE_BYTES // size - 1, -unit)
    fitting = {piece: -(-length // piece) * piece for piece in pieces}
    best = min(fitting, key=fitting.__getitem__, default=0)
    return best if 0 < best <= length and fitting[best] <= _MOST_REPEATED * length else None


def _axes_inside(turn: TransposeGeometry) -> tuple[int, ...]:
    """The output's axes, but for the turned ones, along which the dimensions behind the turned one are read."""
    assert isinstance(turn.out.op, te.ComputeOp)
    behind = [i for read, index in reads(turn.out.op) if read is turn.tensor for i in index[turn.position + 1 :]]
    variables = {e for e in post_order(behind) if isinstance(e, Var)}
    axes = enumerate(turn.out.op.axis)
    return tuple([n for n, axis in axes if n != turn.number and axis.var in variables])
