"""Transpositions into short lines, beyond the caches, of lines that share sets of them: runs of all are copied first.

Planes of an image lie pages apart where its sides are multiples of 64 or so. On the way to channels last a cache line
of each plane would be gone before it is used up. So a run of each of the input's lines is copied, one behind the
other, to where they don't share sets, and turned from there into whole lines of the result. The next runs are asked for
meanwhile, one after the other, since processors see no order in so many places: half of each while runs are copied,
half with the tiles that are turned.
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

_LINES, _ASKED_BY_TILES = 8, 4
"""Cache lines of a run, and those of the next that tiles ask for. (Runs of 4 were slower, of 16 alike.)"""
_LEAST_POWER = PAGE_BYTES // 2
"""Lines apart by multiples of that are copied; others stay in the caches (128 lines of float16, apart by multiples of
512 bytes: copied 69 instead of 86 % of a copy)."""
_FEW = 24
"""So few lines do, too (88 % of a copy, copied 78)."""
_PART_OF_L2 = 8
"""All runs take at most this part of the second-level cache, and the next ones as much."""


@dataclass(frozen=True, slots=True)
class CopiedRuns:
    """Runs of the input's lines, `columns` of them, turned a cache line of each at a time."""

    turn: TransposeGeometry
    columns: int

    @staticmethod
    def of(turn: TransposeGeometry, target: Target) -> CopiedRuns | None:
        """None where lines don't share sets, or all of them make no whole cache lines of the result."""
        rows, columns, out = turn.rows, turn.columns, turn.out
        assert isinstance(rows, int) and isinstance(columns, int)
        whole = turn.number == len(out.shape) - 2 and rows * columns * out.dtype.nbytes % LINE_BYTES == 0
        shares = columns > _FEW and turn.power >= _LEAST_POWER
        fits = columns * _LINES * LINE_BYTES <= target.cache_bytes.l2 // _PART_OF_L2
        if not whole or not shares or not fits or rows < 2 * _LINES * turn.line_of_input:
            return None
        return CopiedRuns(turn, columns) if all(isinstance(d, int) for d in turn.tensor.shape) else None

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops over runs, outermost first. `at_once`: see `PackedTiles`."""
        turn, out, number = self.turn, self.turn.out, self.turn.number
        assert isinstance(out.op, te.ComputeOp)
        axes = out.op.axis
        run, within = s[out].split(axes[number], factor=_LINES * turn.line_of_input, tail="shift")
        group, row = s[out].split(within, factor=turn.line_of_input)
        vector = at_once if at_once % turn.line == 0 else turn.line
        _, element = s[out].split(s[out].fuse(row, axes[-1]), factor=vector, tail="shift")
        s[out].vectorize(element)
        source, packed, blocks, vectors = turn.copied(s, lines_first=True)
        s[packed].reorder(vectors, blocks)
        s[packed].compute_at(s[out], group)
        s[source].compute_at(s[out], run)
        s[source].prefetch_line(
            turn.tensor, s[source].op.axis[turn.position], self._end_of_next,
            lines=_LINES - _ASKED_BY_TILES, to_l1=turn.near,
        )
        self._prefetch_with_tiles(s, packed, group, vectors, blocks)
        return [*axes[:number], run]

    def _end_of_next(self, *index: PrimExpr) -> Sequence[PrimExpr]:
        """Where the part of a line's next run begins that tiles don't ask for, from where its run begins."""
        *first, begin = index
        later = begin + (_LINES + _ASKED_BY_TILES) * self.turn.line_of_input
        return (ravel_index([*first, later], self.turn.tensor.shape),)

    def _prefetch_with_tiles(
        self, s: te.Schedule, packed: te.Tensor, group: IterVar, vectors: IterVar, blocks: IterVar
    ) -> None:
        """Ask with each tile for its share of the next runs' beginnings, one run's after the other's."""
        turn, columns = self.turn, self.columns
        of_group, of_vectors = turn.line_of_input // turn.block, -(-columns // turn.lanes)
        share = -(-columns * _ASKED_BY_TILES // (_LINES * of_group * of_vectors))
        lines = 1 << (share - 1).bit_length()  # so that none reaches from one run into another
        shape, position, last = turn.tensor.shape, turn.position, len(turn.tensor.shape) - 1

        def beginning(first: int) -> Callable[..., Sequence[PrimExpr]]:
            def place(*at: PrimExpr) -> Sequence[PrimExpr]:
                index = turn.read_at(at)
                tile = (group.var * of_vectors + vectors.var) * of_group + blocks.var
                line = tile * lines + first
                begin = index[last] - group.var * turn.line_of_input - blocks.var * turn.block
                index[position] = te.min(line // _ASKED_BY_TILES, columns - 1)
                index[last] = begin + (_LINES + line % _ASKED_BY_TILES) * turn.line_of_input
                return (ravel_index(index, shape),)

            return place

        for first in range(0, lines, _ASKED_BY_TILES):
            at_once = min(lines, _ASKED_BY_TILES)
            s[packed].prefetch_line(turn.tensor, blocks, beginning(first), lines=at_once, to_l1=turn.near)
