"""Lines shorter than cache lines, several at once: vectors of whole cache lines, that reach over them."""

from __future__ import annotations

import math

import te
from topi.cpu.prefetch import LINE_BYTES
from topi.groups import constant_size

__all__ = ["lines_of_vectors", "vectorize_lines"]

_MOST_LINES = 16
"""Cache lines of a vector that reaches over several lines of the output."""


def lines_of_vectors(out: te.Tensor) -> int:
    """How many lines, each shorter than a cache line, are whole ones together; 0 where that makes too long vectors."""
    if out.ndim < 2:
        return 0
    rows, columns = out.shape[-2:]
    line = LINE_BYTES // out.dtype.nbytes
    if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
        return 0
    count = line // math.gcd(line, columns)
    return count if count <= rows and columns * count <= _MOST_LINES * line else 0


def vectorize_lines(s: te.Schedule, out: te.Tensor, count: int) -> list[te.IterVar]:
    """Vectors of so many lines: where in a line, and in which, their elements are is the same for all of them."""
    *outer, rows, columns = s[out].op.axis
    together = count * constant_size([columns.extent])
    vectors, vector = s[out].split(s[out].fuse(rows, columns), factor=together, tail="guard")
    s[out].vectorize(vector)
    for axis in (*outer, vectors):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]
