"""Batches of large matrices that are turned, beyond the caches: strips of the result's lines leave it as one piece.

Lines of the result that begin anywhere share cache lines with each other, but strips of some of them don't, where the
input's lines are whole cache lines. So each strip is turned into the second-level cache, and leaves it past the caches
while the next one is turned: a share of it with each few lines of the input, so that memory has both to do at once. The
strip after that is asked for meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import te
from te.tir import PrimExpr, Var
from topi.cpu.accesses import reads
from topi.cpu.prefetch import LINE_BYTES
from topi.cpu.turn import Turn
from topi.groups import constant_size
from topi.utils import ravel_index

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["PackedStrips"]

_LINES = 2
"""Cache lines of each of the input's lines in a strip. In C, GB/s, of (N, 577, 1024), (N, 196, 1024) and (N, 577, 768)
float32: one 27, 29, 37; two 32, 34, 40; four 29, 28, 31."""
_SHARE_OF_L2 = 3 / 32
"""Of the second-level cache, for a strip, of which it has two of the result, and two of the input, at a time. (Of
91 KB in 1 MB: 70 to 79 % of a copy; of 100 KB 74 to 65.)"""
_LEAST_NBYTES = 4
"""Of elements: of narrower ones strips of two cache lines are more lines. (Per cent of a copy: float16 577 x 1024 48 to
72, but 196 x 1024 69 to 64; bytes as before.)"""
_SHARES = 4
"""Matrices for each core, at least."""


@dataclass(frozen=True, slots=True)
class PackedStrips:
    """Strips of `height` of the result's lines."""

    turn: Turn
    height: int

    @staticmethod
    def of(turn: Turn, target: Target) -> PackedStrips | None:
        """None where lines of the result are whole cache lines, or strips no whole ones, or matrices few or small."""
        out, rows, columns = turn.out, constant_size([turn.rows]), constant_size([turn.columns])
        height, caches = _LINES * turn.line_of_input, target.cache_bytes
        behind = turn.number == len(out.shape) - 2 and "memory_strides" not in out.op.attrs
        known = behind and all(isinstance(d, int) for d in out.shape)
        assert isinstance(out.op, te.ComputeOp)
        if not all(read is turn.tensor for read, _ in reads(out.op)):  # a bias would be gathered by what is one piece
            return None
        if not known or not turn.begins_anywhere or rows % height or target.vector_bytes < LINE_BYTES:
            return None
        strip = height * columns * max(out.dtype.nbytes, turn.tensor.dtype.nbytes)
        few = constant_size(out.shape[:-2]) < _SHARES * target.num_cores
        if few or strip > _SHARE_OF_L2 * caches.l2 or rows < 4 * height or columns < 4 * turn.lanes:
            return None
        if min(out.dtype.nbytes, turn.tensor.dtype.nbytes) < _LEAST_NBYTES:
            return None
        return PackedStrips(turn, height)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over matrices, outermost first. `at_once`: see `PackedTiles`."""
        turn, out = self.turn, self.turn.out
        *outer, row, column = s[out].op.axis
        strip, row = s[out].split(row, factor=self.height)
        _, element = s[out].split(s[out].fuse(row, column), factor=self.height * turn.lanes, tail="shift")
        _, vector = s[out].split(element, factor=turn.line)
        s[out].vectorize(vector)
        s[out].pragma(strip, "overlap_iterations", "apart")
        _, packed, blocks, vectors = turn.copied(s)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], strip)
        each = max(turn.lanes * turn.block // self.height, 1)
        for n in range(each):
            place = self._in_next_strip(blocks.var, each, n)
            s[packed].prefetch_line(turn.tensor, blocks, place, lines=_LINES)
        return outer

    def _in_next_strip(self, block: Var, each: int, n: int) -> Callable[..., Sequence[PrimExpr]]:
        """Where the next strip's part begins that lies in the `n`-th of the `each` lines that a block asks for."""
        turn = self.turn

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            index = turn.read_at(first)
            line = ravel_index([*index[:-2], index[-2] + block * each + n], turn.tensor.shape[:-1])
            following = index[-1] - block * turn.block + self.height
            matrix = constant_size([turn.columns, turn.rows])
            return (line * turn.apart + te.if_then_else(following < turn.apart, following, matrix),)

        return place
