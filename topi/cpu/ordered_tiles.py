"""Transpositions beyond the caches whose input is read in the order of memory, by blocks of whole lines.

A core reads fastest what lies in one piece: then the processor fetches ahead by itself, beside what is
asked for. So a block of the input's lines, as many as fill two cache lines of each line of the output, is
brought into the second-level cache in order, while the block before is turned there, strip by strip. A part of the next
block is asked for with each tile that is turned in registers, and a part of the strip before is stored past the caches
with each few columns of them: all at once, either would keep the other, and what is turned, waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import te
from te.ir import post_order
from te.tir import PrimExpr, Var
from topi.cpu.accesses import reads
from topi.cpu.turn import Turn
from topi.groups import constant_size
from topi.utils import ravel_index

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["OrderedTiles"]

_LINES, _LINES_AND_ONE = 2, 3
"""Cache lines that are written of each of the output's lines at a time; and where one more is turned in vain."""
_BLOCKS_OF_CACHE = 3
"""Blocks that a second-level cache holds: one that is turned, one that arrives, and what else comes along."""
_LONG_LINE_BYTES = 1024
"""Of the input's lines, from which a block is more than what is asked for anyway."""
_SHARES = 4
"""Blocks for each core, at least."""


@dataclass(frozen=True, slots=True)
class OrderedTiles:
    """Blocks of `width` places along the last axis of the output, taken by strips of a cache line of its other axis.

    `inside` are the output's axes that run within a block beside. Strips are copied before they are turned where they
    share sets of the first-level cache, in which they would not stay.
    """

    turn: Turn
    width: int
    inside: tuple[int, ...]

    @staticmethod
    def of(turn: Turn, target: Target) -> OrderedTiles | None:
        """None where lines of the input are short, or a block of them exceeds its part of the second-level cache."""
        sizes = [*turn.out.shape, *turn.tensor.shape[turn.position + 1 :]]
        nbytes, l2 = turn.apart * turn.tensor.dtype.nbytes, target.cache_bytes.l2
        rows, columns = constant_size([turn.rows]), constant_size([turn.columns])
        if not all(isinstance(d, int) for d in sizes) or nbytes < _LONG_LINE_BYTES or rows < 2 * turn.line_of_input:
            return None
        if turn.begins_anywhere and "memory_strides" in turn.out.op.attrs:
            return None
        wide = turn.begins_anywhere and _BLOCKS_OF_CACHE * _LINES_AND_ONE * turn.line * nbytes <= l2
        width = max((_LINES_AND_ONE if wide else _LINES) * turn.line, turn.lanes)
        if _BLOCKS_OF_CACHE * width * nbytes > l2 or columns < _SHARES * target.num_cores * width:
            return None
        return OrderedTiles(turn, width, _axes_inside(turn))

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a strip, outermost first.

        So many elements are computed `at_once`, at least a cache line of them and at most what a block has of a line.
        """
        turn, out = self.turn, self.turn.out
        axes = list(s[out].op.axis)
        strip, row = s[out].split(axes[turn.number], factor=turn.line_of_input, tail="shift")
        group, row = s[out].split(row, factor=turn.block)
        if turn.begins_anywhere:
            part, (vector, column) = turn.split_columns(s, self.width)
        else:
            part, column = s[out].split(axes[-1], factor=self.width, tail="shift")
            fits = at_once % turn.line == 0 and self.width % at_once == 0
            vector, column = s[out].split(column, factor=at_once if fits else turn.line)
        outside = [axis for n, axis in enumerate(axes[:-1]) if n != turn.number and n not in self.inside]
        loops = [*outside, part, *[axes[n] for n in self.inside]]
        s[out].reorder(*loops, strip, group, row, vector, column)
        s[out].vectorize(column)
        s[out].pragma(strip, "overlap_iterations")
        source, packed, _, vectors = turn.copied(s, lines_first=turn.shares_sets)
        s[packed].compute_at(s[out], strip)
        if turn.shares_sets:
            s[source].compute_at(s[out], strip)
        for_columns = self.width * turn.block // turn.line_of_input
        vectors_of_columns = -(-self._lines_turned() // turn.lanes)
        lines = -(-for_columns // vectors_of_columns)
        s[packed].prefetch_line(turn.tensor, vectors, self._in_next_block(vectors.var, lines), lines=lines)
        return loops

    def _lines_turned(self) -> int:
        return self.width + (self.turn.line if self.turn.begins_anywhere else 0)

    def _in_next_block(self, vector: Var, lines: int) -> Callable[..., Sequence[PrimExpr]]:
        """Where the next block's cache `lines` begin that are asked for with a `vector` of some columns.

        They lie as far into that block, in memory, as the columns do in theirs, one vector's behind the other's.
        """
        turn, turned = self.turn, self._lines_turned()
        shape, position, last = turn.tensor.shape, turn.position, len(turn.tensor.shape) - 1
        dims = [*[d for d in range(last) if d != position], last, position]  # as the turned copy has them

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            index = [e for _, e in sorted(zip(dims, first, strict=True), key=lambda pair: pair[0])]
            index[position] = index[position] - te.min(vector * turn.lanes, turned - turn.lanes) + turned
            begin = ravel_index(index[: position + 1], shape[: position + 1]) * turn.apart
            within = ravel_index(index[position + 1 :], shape[position + 1 :]) * self.width
            return (begin + within + vector * (lines * turn.line_of_input),)

        return place


def _axes_inside(turn: Turn) -> tuple[int, ...]:
    """The output's axes, but for the turned ones, along which the dimensions behind the turned one are read."""
    assert isinstance(turn.out.op, te.ComputeOp)
    behind = [i for read, index in reads(turn.out.op) if read is turn.tensor for i in index[turn.position + 1 :]]
    variables = {e for e in post_order(behind) if isinstance(e, Var)}
    axes = enumerate(turn.out.op.axis)
    return tuple([n for n, axis in axes if n != turn.number and axis.var in variables])
