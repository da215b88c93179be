"""Rows shorter than a cache line: whole rows of an output, several of them, are one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused
from relayc.te.tir import FloorDiv, FloorMod
from relayc.topi.cpu.accesses import conditions, depend_on_data, reads
from relayc.topi.cpu.common import fuses_inner
from relayc.topi.cpu.elementwise.line_reads import prefetch_where_masked
from relayc.topi.cpu.prefetch import LINE_BYTES, rows_of_whole_lines

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["ShortLines"]

_MOST_LINES = 16
"""Most cache lines of a vector."""
_FEWEST_LINES = 4
"""Fewest cache lines of a vector where inputs are joined, whose reads are not whole cache lines."""


@dataclass(frozen=True, slots=True)
class ShortLines:
    """Vectors of `count` rows of `columns` elements, in which the place of each lane in its row is static."""

    out: te.Tensor
    count: int
    columns: int
    target: Target

    @staticmethod
    def of(out: te.Tensor, target: Target, *, joins: bool) -> ShortLines | Refused:
        """Rows that are whole cache lines together; refused where they are long, or too many for a vector.

        `joins`: inputs may be joined or indexed in any way, so that rows are worth it only if places are static.
        """
        if out.ndim < 2 or (joins and not _places_are_known(out)):
            return Refused("there is one row, or elements do not depend on their place in rows alone")
        (rows, columns), line = out.shape[-2:], LINE_BYTES // out.dtype.nbytes
        if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
            return Refused("rows are dynamic, or at least a cache line")
        count = rows_of_whole_lines(columns * out.dtype.nbytes)
        count *= -(-(_FEWEST_LINES if joins else 1) * line // (columns * count))
        if count > rows or columns * count > _MOST_LINES * line:
            return Refused(f"{count} rows are whole cache lines together: there are fewer, or those are too many")
        return ShortLines(out, count, columns, target)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Vectorise the output; returns the loops outside of vectors.

        The rows of a last vector that is not full are masked, by loop partitioning, or computed twice where the loop
        over vectors will be part of a fused parallel loop, which can't be partitioned: masks of hundreds of lanes in
        its body took LLVM minutes.
        """
        out, together = self.out, self.count * self.columns
        *outer, rows, columns = s[out].op.axis
        is_fused = bool(outer) and fuses_inner(outer, self.target)
        tail = "shift" if is_fused else "guard"
        vectors, vector = s[out].split(s[out].fuse(rows, columns), factor=together, tail=tail)
        s[out].vectorize(vector)
        for axis in (*outer, vectors):
            s[out].pragma(axis, "loop_partition_hint")
        prefetch_where_masked(s, out, vectors, together, self.target)
        return [*outer, vectors]


def _places_are_known(out: te.Tensor) -> bool:
    """True if the elements that a vector of whole rows reads have static distances from each other.

    Indices may depend in any way on the position in a row, but not on data, and must be affine in the row.
    """
    op = out.op
    decided = [condition for _, condition in conditions(op)]
    if depend_on_data([*decided, *[i for _, index in reads(op) for i in index]]):
        return False
    uneven = [e for _, index in reads(op) for e in post_order(index) if isinstance(e, FloorDiv | FloorMod)]
    return not any(op.axis[-2].var in post_order((e,)) for e in [*decided, *uneven])
