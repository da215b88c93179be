"""Rows (the innermost dimension) shorter than cache lines: vectors of whole cache lines that span several rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import FloorDiv, FloorMod, ProducerLoad
from relayc.topi.cpu.accesses import conditions, reads
from relayc.topi.cpu.common import fuses_inner
from relayc.topi.cpu.prefetch import LINE_BYTES, rows_of_whole_lines
from relayc.topi.groups import constant_size

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["FEWEST_LINES", "lines_of_vectors", "places_are_known", "vectorize_lines"]

_MOST_LINES = 16
"""Most cache lines of a vector that spans several rows of the output."""


FEWEST_LINES = 4
"""Fewest cache lines of such a vector where inputs are joined, whose reads are not whole cache lines."""


def lines_of_vectors(out: te.Tensor, *, least: int = 1) -> int:
    """Return how many rows shorter than a cache line make whole cache lines; 0 if the vector would be too long.

    `least`: fewest cache lines of such a vector.
    """
    if out.ndim < 2:
        return 0
    rows, columns = out.shape[-2:]
    line = LINE_BYTES // out.dtype.nbytes
    if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
        return 0
    count = rows_of_whole_lines(columns * out.dtype.nbytes)
    count *= -(-least * line // (columns * count))
    return count if count <= rows and columns * count <= _MOST_LINES * line else 0


def places_are_known(out: te.Tensor) -> bool:
    """True if the elements that a vector of whole rows reads have static distances from each other.

    Indices may depend in any way on the position in a row, but not on data, and must be affine in the row.
    """
    op = out.op
    assert isinstance(op, te.ComputeOp)
    if len(op.axis) < 2:
        return False
    decided = [condition for _, condition in conditions(op)]
    for e in post_order([*decided, *[i for _, index in reads(op) for i in index]]):
        if isinstance(e, ProducerLoad):
            return False
    uneven = [e for _, index in reads(op) for e in post_order(index) if isinstance(e, FloorDiv | FloorMod)]
    return not any(op.axis[-2].var in post_order((e,)) for e in [*decided, *uneven])


def vectorize_lines(s: te.Schedule, out: te.Tensor, count: int, target: Target) -> list[te.IterVar]:
    """Vectorise `count` rows at a time, so that the position of each lane within its row is static.

    The rows of a last vector that is not full are masked, by loop partitioning, or computed twice where the loop over
    vectors will be part of a fused parallel loop, which can't be partitioned: masks of hundreds of lanes in its body
    took LLVM minutes.
    """
    *outer, rows, columns = s[out].op.axis
    together = count * constant_size([columns.extent])
    is_fused = bool(outer) and fuses_inner(outer, target)
    tail = "shift" if is_fused else "guard"
    vectors, vector = s[out].split(s[out].fuse(rows, columns), factor=together, tail=tail)
    s[out].vectorize(vector)
    for axis in (*outer, vectors):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]
