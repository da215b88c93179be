"""Outputs larger than the LLC whose rows are not whole cache lines: chunks of several rows are packed into whole ones.

A row is the innermost, contiguous dimension; the names in this module call it a line. Padded planes have such rows, and
concatenations and broadcasts may: each shares cache lines with the next one, so its stores can't be non-temporal. So
chunks of rows that make whole cache lines are packed in a buffer in L1 or L2, and
stored from there by cache lines, while the inputs of the next chunks are prefetched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import Call, IterVar, PrimExpr, Range, Var, const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import conditions, large_shape
from relayc.topi.cpu.common import attach
from relayc.topi.cpu.elementwise.line_reads import LineRead, line_reads
from relayc.topi.cpu.prefetch import LINE_BYTES, has_line_vectors, rows_ahead, rows_of_whole_lines
from relayc.topi.cpu.tiling import has_few_fill_buffers
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PackedLines"]

_PART_OF_L2 = 16
"""Divisor of the L2 size: the largest chunk; the ends of longer rows matter little."""
_SHORTEST_BYTES, _SHORTEST_MASKED, _LEAST_BYTES = 32, 16, 1024
"""Shortest rows that are packed, in bytes; shortest ones with masked loads, which are slow without prefetches; and the
least bytes of a chunk where rows are shorter than cache lines."""
_SHORT_CHUNK, _SHORT_LINE = 48, 768
"""For cores with few line-fill buffers: most cache lines of a chunk whose stores overlap with packing of the next one
(an out-of-order window of some 300 instructions), and the length in bytes below which padded rows of larger chunks are
stored unpacked; for longer ones the shared cache lines cost more than the stalls."""


@dataclass(frozen=True, slots=True)
class PackedLines:
    """Chunks of `count` rows of `out`, whose other dimensions are collapsed.

    `inputs`: the large inputs, which are read in memory order. `level`: of the cache that they are prefetched to.
    """

    out: te.Tensor
    count: int
    inputs: Sequence[LineRead]
    level: int

    @staticmethod
    def of(out: te.Tensor, target: Target) -> PackedLines | Refused:
        """The chunks; refused where caches hold the output, its rows are whole cache lines, or chunks too large.

        Large inputs must be read in memory order.
        """
        shape = large_shape(out, target)
        if isinstance(shape, Refused):
            return shape
        borders, few, line = list(conditions(out.op)), has_few_fill_buffers(target), shape[-1] * out.dtype.nbytes
        masked = any(isinstance(source.body[0], Call) for source, _ in borders)
        by_masks = masked and not (few and has_line_vectors(target))  # else stored unpacked
        count = _rows_of_chunk(line, _SHORTEST_MASKED if by_masks else _SHORTEST_BYTES, target)
        inputs = line_reads(out.op) if count else None
        if not inputs:
            return Refused("rows are whole cache lines, or too short or long, or inputs not read in memory order")
        chunk = count * line
        if few and borders and len(inputs) == 1 and chunk > _SHORT_CHUNK * LINE_BYTES and line < _SHORT_LINE:
            return Refused(f"chunks of {chunk} bytes stall a core with few line-fill buffers")
        are_separate = few and len(inputs) > 1 and chunk <= target.cache_bytes.l1 // 4
        return PackedLines(out, count, inputs, level=2 if are_separate else 1)

    def apply(self, s: te.Schedule) -> tuple[te.Tensor, list[te.IterVar], te.Tensor]:
        """Schedule the output; returns it, the loop over chunks, and the stage of rows computed there."""
        lines = self._collapse(s)
        out = s.outputs[0].output(0)
        *outer, column = s[out].op.axis
        chunk, within = s[out].split(s[out].fuse(*outer), factor=self.count)
        s[out].pragma(chunk, "loop_partition_hint")
        vectors, vector = s[out].split(s[out].fuse(within, column), factor=LINE_BYTES // out.dtype.nbytes)
        s[out].vectorize(vector)
        self._prefetch_ahead(s, out, vectors)
        attach(s, lines, out, chunk)
        return out, [chunk], lines

    def _collapse(self, s: te.Schedule) -> te.Tensor:
        """Recompute the output from a stage with all dimensions in front of rows collapsed; returns that."""
        op, shape = self.out.op, self._outer
        assert isinstance(op, te.ComputeOp)
        *outer, column = op.axis
        place = IterVar(Range(0, math.prod(shape)), Var("place"), "data")
        values = {axis.var: i for axis, i in zip(outer, unravel_index(place.var, shape), strict=True)}
        body = [substitute(e, values) for e in op.body]
        lines = te.ComputeOp(op.name, op.tag, op.attrs, [place, column], body).output(0)
        in_shape = lambda *i: lines(ravel_index(i[:-1], shape), i[-1])  # noqa: E731
        s.recompute(self.out, te.compute(self.out.shape, in_shape, name=op.name, tag="injective"))
        return s.current(lines)

    def _prefetch_ahead(self, s: te.Schedule, out: te.Tensor, vectors: te.IterVar) -> None:
        """Prefetch the inputs of later chunks, with each cache line of the output that is stored."""
        for read in self.inputs:
            widened = max(read.parts * read.tensor.dtype.nbytes // out.dtype.nbytes, 1)
            s[out].prefetch(read.tensor, vectors, te.Prefetch(0, self.level, self._place(read), widened))

    def _place(self, read: LineRead) -> Callable[..., list[PrimExpr]]:
        """Return the approximate place of the same read in a later chunk; padding shifts it by a few elements.

        It is computed once per chunk, for its first row.
        """
        width = constant_size(self.out.shape[-1:])
        size, gap = self.count * width, read.stride - read.parts * width
        steps = self.count * rows_ahead(size * self.out.dtype.nbytes)
        last = math.prod(self._outer) - 1

        def place(*first: PrimExpr) -> list[PrimExpr]:
            flat = ravel_index(first, self.out.shape)
            begin = te.min(flat // size * self.count + steps, last)
            start = read.place([*unravel_index(begin, self._outer), const(0)])
            return [start + flat % size * read.parts + flat % size // width * gap]

        return place

    @property
    def _outer(self) -> list[int]:
        """Sizes of the dimensions in front of rows."""
        return [constant_size([d]) for d in self.out.shape[:-1]]


def _rows_of_chunk(line: int, shortest: int, target: Target) -> int:
    """How many rows of `line` bytes make whole cache lines; 0 where one does, rows are shorter, or chunks too large."""
    count = rows_of_whole_lines(line)
    count *= -(-_LEAST_BYTES // (count * line)) if line < LINE_BYTES else 1
    fits = shortest <= line and count * line <= target.cache_bytes.l2 // _PART_OF_L2
    return count if fits and count > 1 else 0
