"""Matrices that are turned, beyond the caches: strips of the result's lines leave it as one piece.

Lines of the result that begin anywhere share cache lines with each other, but strips of some of them don't, where the
matrices are whole cache lines. So each strip is turned into a cache, and leaves it past the caches while the next
one is turned: a share of it with each few lines of the input, so that memory has both to do at once. Meanwhile the next
matrix is asked for, or the next piece of each of the input's lines where it is large, since processors see no order in
so many places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import PrimExpr, Var, const
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.tiling import has_high_latency_llc
from relayc.topi.cpu.transposes.geometry import TransposeGeometry
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PackedBlocks"]

_WHOLE_SHARE = 2 / 5
"""Of the second-level cache, for a matrix that is asked for whole: the one that is turned stays there, too. (GB/s, by
pieces and whole: 49 lines of 2048 30 and 35, 20 x 20 of 255 channels 30 and 36, 28 x 28 of 72 27 and 37; matrices of
800 KB 34 and 28.)"""
_WHOLE_SHARE_OF_FAR, _LEAST_OF_FAR = 4 / 5, 1024
"""As much where memory is far, of lines that begin anywhere, and bytes of pieces there, each of another page.
(Whole and as else: 260 lines of 1000 floats, half of the cache, 15 and 9, 577 of 768 halves 13 and 8; by pieces and
by ordered tiles: of 1024 bytes 15 and 8, of 256 9 and 11.)"""
_PIECE_BYTES, _PART_OF_L2 = 2048, 8
"""Of each line of larger ones that are asked for together, at most; all of them take at most that part of the
second-level cache, and what is turned meanwhile as much. (GB/s, pieces of 128, 256 and 512 bytes: 196 lines 34, 33, 36;
577 lines 36, 32, 27.)"""
_BLOCK_SHARE_OF_CACHE = 3 / 32
"""Of the second-level cache, for a strip, of which it has two of the result."""
_LEAST_NBYTES = 4
"""Of elements of larger matrices: of narrower ones a strip has more lines, which a tile takes at once, and finds in no
first-level cache. (GB/s, before and by strips: bytes of 64 channels 32 and 16, float16 39 and 36.)"""
_TURNED_BYTES = 32
"""Of vectors that whole matrices are turned into: a tile of longer ones has more lines than stay in the first-level
cache. (GB/s, 64 and 32 bytes: 72 x 784 float16 32 and 46, float32 35 and 47, 197 x 768 uint8 28 and 38; by pieces,
577 x 1024 float32, 34 and 29.)"""
_MOST_BYTES = 8192
"""Of a strip of whole cache lines: first-level caches of 32 to 48 KB have it, and two of the result, in half of their
room. (GB/s, matrices asked for whole, by strips and by ordered tiles: 64 channels 46 and 26, 112 50 and 29, 176 30 and
38, 256 25 and 38, 512 25 and 41.)"""
_SHORT_BYTES, _SHARE_OF_L1 = 512, 4
"""Matrices that the first-level cache holds are strips where their lines are shorter, and they take more of it: ordered
tiles, and whole matrices, are faster else. (GB/s, strips and those: 64 lines of 128 37 and 46, 32 x 32 41 and 50.)"""
_MOST_BLOCKS, _FEWEST_STRIPS = 128, 4
"""That are one loop: the last of them leaves while nothing is turned."""
_SHARES = 4
"""Loops over strips for each core, at least."""


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Strips of `height` of the result's lines, `loop` lines of them in one loop.

    `piece` lines' are asked for at once, a multiple of the height; all of a matrix where it is None.
    """

    turn: TransposeGeometry
    height: int
    loop: int
    piece: int | None

    @staticmethod
    def of(turn: TransposeGeometry, target: Target) -> PackedBlocks | None:
        """None where matrices are no whole cache lines, or small, or strips too large."""
        out, tensor, rows, columns = turn.out, turn.tensor, constant_size([turn.rows]), constant_size([turn.columns])
        size, of_result, caches = tensor.dtype.nbytes, out.dtype.nbytes, target.cache_bytes
        if list(tensor.shape) != [*out.shape[:-2], columns, rows] or turn.number != len(out.shape) - 2:
            return None
        if not all(isinstance(d, int) for d in out.shape) or "memory_strides" in out.op.attrs:
            return None
        height, widest = max(turn.line, turn.line_of_input), max(size, of_result)
        if rows * columns * of_result % LINE_BYTES or height * columns * widest > _BLOCK_SHARE_OF_CACHE * caches.l2:
            return None
        matrices = constant_size(out.shape[:-2])
        loops = max(-(-rows // (_MOST_BLOCKS * height)), -(-_SHARES * target.num_cores // matrices))
        loop = min(-(-rows // (loops * height)) * height, rows)
        if loop < _FEWEST_STRIPS * height or rows * columns * widest <= caches.l1 // _SHARE_OF_L1:
            return None
        if rows * size >= _SHORT_BYTES and rows * columns * widest <= caches.l1:
            return None
        are_lines = columns % turn.line == 0  # which ordered tiles take as well
        is_far = has_high_latency_llc(target)
        share = _WHOLE_SHARE_OF_FAR if is_far and not are_lines else _WHOLE_SHARE
        if rows * columns * widest <= share * caches.l2:
            if are_lines and height * columns * widest > _MOST_BYTES:
                return None
            return PackedBlocks(replace(turn, lanes=min(turn.lanes, _TURNED_BYTES // size)), height, loop, None)
        if are_lines or min(size, of_result) < _LEAST_NBYTES or not _is_all(turn):
            return None
        most = min(_PIECE_BYTES, caches.l2 // (_PART_OF_L2 * columns)) // size
        piece = height << max((min(most, rows) // height).bit_length() - 1, 0)
        return PackedBlocks(turn, height, loop, piece) if not is_far or piece * size >= _LEAST_OF_FAR else None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of strips, outermost first. `at_once`: see `PackedTiles`."""
        turn, out = self.turn, self.turn.out
        *outer, row, column = s[out].op.axis
        loop, row = s[out].split(row, factor=self.loop, tail="shift")
        strip, row = s[out].split(row, factor=self.height, tail="shift")
        if _is_all(turn):  # else what is read beside would be gathered by what is one piece
            lines = self.height * constant_size([turn.columns]) // turn.line
            share = -(-lines // self._vectors) * turn.line
            _, column = s[out].split(s[out].fuse(row, column), factor=share, tail="shift")
            s[out].pragma(strip, "overlap_iterations", "apart")
        _, vector = s[out].split(column, factor=turn.line, tail="shift")
        s[out].vectorize(vector)
        _, packed, blocks, vectors = turn.copied(s)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], strip)
        lines = max(turn.lanes * turn.block // turn.line_of_input, 1)
        together = lines if self.piece is None else min(lines, self.piece // turn.line_of_input)
        for first in range(0, lines, together):
            place = self._prefetched(vectors.var, blocks.var, lines, first)
            s[packed].prefetch_line(turn.tensor, blocks, place, lines=together, to_l1=turn.near)
        return [*outer, loop]

    @property
    def _vectors(self) -> int:
        """That a line of the result is turned into."""
        return -(-constant_size([self.turn.columns]) // self.turn.lanes)

    def _prefetched(self, vector: Var, block: Var, lines: int, first_line: int) -> Callable[..., Sequence[PrimExpr]]:
        """Where a tile's share of the next piece or matrix begins, `lines` cache lines, from its `first_line` on.

        Shares lie one behind the other in the order of memory, as tiles follow each other.
        """
        turn, columns, line_of_input = self.turn, constant_size([self.turn.columns]), self.turn.line_of_input
        blocks, matrix = -(-self.height // turn.block), columns * turn.apart

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            *outer, _, row = turn.read_at(first)
            begin = const(0) if self.piece is None else row // self.piece * self.piece
            strip = (row - block * turn.block - begin + self.height - 1) // self.height
            line = ((strip * self._vectors + vector) * blocks + block) * lines + first_line
            if self.piece is None:
                return (ravel_index([*outer, columns, 0], turn.tensor.shape) + line * line_of_input,)
            further = te.if_then_else(begin + self.piece < turn.apart, begin + self.piece, matrix)
            of_piece = self.piece // line_of_input
            at = ravel_index([*outer, te.min(line // of_piece, columns - 1), 0], turn.tensor.shape)
            return (at + further + line % of_piece * line_of_input,)

        return place


def _is_all(turn: TransposeGeometry) -> bool:
    """Is what is turned all that the result reads?"""
    assert isinstance(turn.out.op, te.ComputeOp)
    return all(read is turn.tensor for read, _ in reads(turn.out.op))
