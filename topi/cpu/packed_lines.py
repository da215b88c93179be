"""Results whose lines are no whole cache lines, beyond the caches: chunks of several lines are whole ones.

Borders around planes make such lines, and joined tensors and broadcasts may: each shares cache lines with the next one,
so it can't be stored past the caches. So as many lines as are whole cache lines are put together in a cache near the
core, and leave it a cache line at a time; what the next ones are made of is asked for meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import te
from te.tir import IterVar, PrimExpr, Range, Var, const
from te.tir.substitute import substitute
from topi.cpu.line_reads import LineRead, line_reads
from topi.cpu.prefetch import LINE_BYTES, is_beyond_caches, rows_ahead
from topi.groups import constant_size
from topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["PackedLines"]

_PART_OF_L2 = 16
"""A chunk is at most this part of the second-level cache: of longer lines ends matter little."""
_SHORTEST_BYTES, _LEAST_BYTES = 32, 1024
"""Lines that are put together, at least, and what chunks have at least where lines are shorter than cache lines."""


@dataclass(frozen=True, slots=True)
class PackedLines:
    """Chunks of `count` lines of `out`, of `width` elements each, all its dimensions but the last taken as one.

    Large inputs are read in the order of memory (`inputs`).
    """

    out: te.Tensor
    count: int
    width: int
    inputs: Sequence[LineRead]

    @staticmethod
    def of(out: te.Tensor, target: Target) -> PackedLines | None:
        """None where the caches hold the output, its lines are whole cache lines, or too many would have to be joined.

        Or large inputs are read in another order than memory's.
        """
        op, size, shape = out.op, out.dtype.nbytes, [d for d in out.shape if isinstance(d, int)]
        assert isinstance(op, te.ComputeOp)
        known = 1 < len(shape) == len(out.shape) and out.dtype.bits % 8 == 0 and op.attrs.get("strides") is None
        if not known or not is_beyond_caches(out, target):
            return None
        line = shape[-1] * size
        count = LINE_BYTES // math.gcd(line, LINE_BYTES)
        count *= -(-_LEAST_BYTES // (count * line)) if line < LINE_BYTES else 1
        if count == 1 or line < _SHORTEST_BYTES or count * line > target.cache_bytes.l2 // _PART_OF_L2:
            return None
        inputs = line_reads(op)
        return PackedLines(out, count, shape[-1], inputs) if inputs else None

    def apply(self, s: te.Schedule) -> tuple[te.Tensor, list[te.IterVar], te.Tensor]:
        """Schedule the output; returns it, the loop over chunks, and the lines computed there, of two dimensions."""
        lines = self._merged(s)
        out = s.outputs[0].output(0)
        *outer, last = s[out].op.axis
        chunk, within = s[out].split(s[out].fuse(*outer), factor=self.count)
        s[out].pragma(chunk, "loop_partition_hint")
        vectors, vector = s[out].split(s[out].fuse(within, last), factor=LINE_BYTES // out.dtype.nbytes)
        s[out].vectorize(vector)
        self._ask_ahead(s, out, vectors)
        s[lines].set_scope("local")
        s[lines].compute_at(s[out], chunk)
        return out, [chunk], lines

    def _merged(self, s: te.Schedule) -> te.Tensor:
        """What the output is read from now: it as lines, of two dimensions."""
        op = self.out.op
        assert isinstance(op, te.ComputeOp)
        shape = [constant_size([d]) for d in self.out.shape[:-1]]
        line = IterVar(Range(0, math.prod(shape)), Var("line"), "data")
        values = {axis.var: place for axis, place in zip(op.axis[:-1], unravel_index(line.var, shape), strict=True)}
        body = [substitute(e, values) for e in op.body]
        lines = te.ComputeOp(op.name, op.tag, op.attrs, [line, op.axis[-1]], body).output(0)

        def in_shape(*i: Any) -> PrimExpr:
            return lines(ravel_index(i[:-1], shape), i[-1])

        s.recompute(self.out, te.compute(self.out.shape, in_shape, name=op.name, tag="injective"))
        return s.current(lines)

    def _ask_ahead(self, s: te.Schedule, out: te.Tensor, vectors: te.IterVar) -> None:
        """Ask, with each cache line of the output that is stored, for what later chunks are made of."""
        for read in self.inputs:
            widened = max(read.parts * read.tensor.dtype.nbytes // out.dtype.nbytes, 1)
            s[out].prefetch_line(read.tensor, vectors, self._place(read), lines=widened)

    def _place(self, read: LineRead) -> Callable[..., list[PrimExpr]]:
        """The same place of a later chunk, about: borders change it by a few elements.

        It is worked out for the first line of a chunk only.
        """
        size, gap = self.count * self.width, read.stride - read.parts * self.width
        steps = self.count * rows_ahead(size * self.out.dtype.nbytes)
        shape = [constant_size([d]) for d in self.out.shape[:-1]]
        last = math.prod(shape) - 1

        def place(*first: PrimExpr) -> list[PrimExpr]:
            flat = ravel_index(first, self.out.shape)
            line = te.min(flat // size * self.count + steps, last)
            begin = read.place([*unravel_index(line, shape), const(0)])
            return [begin + flat % size * read.parts + flat % size // self.width * gap]

        return place
