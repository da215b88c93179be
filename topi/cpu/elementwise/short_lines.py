"""Lines shorter than cache lines, several at once: vectors of whole cache lines, that reach over them."""

from __future__ import annotations

import math

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import FloorDiv, FloorMod, ProducerLoad
from relayc.topi.cpu.accesses import conditions, reads
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.groups import constant_size

__all__ = ["FEWEST_LINES", "lines_of_vectors", "places_are_known", "vectorize_lines"]

_MOST_LINES = 16
"""Cache lines of a vector that reaches over several lines of the output."""


FEWEST_LINES = 4
"""Cache lines of such a vector, at least, where elements are put together: what is read for one is no whole ones."""


def lines_of_vectors(out: te.Tensor, *, least: int = 1) -> int:
    """How many lines, each shorter than a cache line, are whole ones together; 0 where that makes too long vectors.

    `least`: cache lines of such a vector.
    """
    if out.ndim < 2:
        return 0
    rows, columns = out.shape[-2:]
    line = LINE_BYTES // out.dtype.nbytes
    if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
        return 0
    count = line // math.gcd(line, columns)
    count *= -(-least * line // (columns * count))
    return count if count <= rows and columns * count <= _MOST_LINES * line else 0


def places_are_known(out: te.Tensor) -> bool:
    """Do the inputs' elements, of a vector of whole lines, lie at the same distances from each other in all of them?

    Along lines anything may decide where they lie but data; from line to line they lie evenly.
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


def vectorize_lines(s: te.Schedule, out: te.Tensor, count: int) -> list[te.IterVar]:
    """Vectors of so many lines: where in a line, and in which, their elements are is the same for all of them."""
    *outer, rows, columns = s[out].op.axis
    together = count * constant_size([columns.extent])
    vectors, vector = s[out].split(s[out].fuse(rows, columns), factor=together, tail="guard")
    s[out].vectorize(vector)
    for axis in (*outer, vectors):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]
