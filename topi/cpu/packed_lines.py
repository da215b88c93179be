"""Results whose lines are no whole cache lines, beyond the caches: chunks of several lines are whole ones.

Borders around planes make such lines, and joined tensors and broadcasts may: each shares cache lines with the next one,
so it can't be stored past the caches. So as many lines as are whole cache lines are put together in a cache near the
core, and leave it a cache line at a time; what the next ones are made of is asked for meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import te
from te.arith import Analyzer
from te.tir import IterVar, PrimExpr, Range, Var, as_int, const
from te.tir.substitute import substitute
from topi.cpu.accesses import reads
from topi.cpu.prefetch import LINE_BYTES, read_later, rows_ahead
from topi.groups import constant_size
from topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["PackedLines"]

_PART_OF_L2 = 16
"""A chunk is at most this part of the second-level cache: of longer lines ends matter little."""
_LARGE_PARTS = 4
"""Inputs of so many parts of the output, or more, come from memory."""


@dataclass(frozen=True, slots=True)
class PackedLines:
    """Chunks of `count` lines of `out`, of `width` elements each, all its dimensions but the last taken as one.

    `strides` is how many elements of large inputs lie between the places that neighbouring lines are read from.
    """

    out: te.Tensor
    count: int
    width: int
    strides: Mapping[te.Tensor, int]

    @staticmethod
    def of(out: te.Tensor, target: Target) -> PackedLines | None:
        """None where the caches hold the output, its lines are whole cache lines, or too many would have to be joined.

        Or large inputs are read in another order than memory's.
        """
        op, size, shape = out.op, out.dtype.nbytes, [d for d in out.shape if isinstance(d, int)]
        assert isinstance(op, te.ComputeOp)
        known = 1 < len(shape) == len(out.shape) and out.dtype.bits % 8 == 0 and op.attrs.get("strides") is None
        if not known or not 0 < target.cache_bytes.l3 < math.prod(shape) * size:
            return None
        line = shape[-1] * size
        count = LINE_BYTES // math.gcd(line, LINE_BYTES)
        if count == 1 or line < LINE_BYTES or count * line > target.cache_bytes.l2 // _PART_OF_L2:
            return None
        large = [(t, i) for t, i in reads(op) if _LARGE_PARTS * constant_size(t.shape) >= math.prod(shape)]
        strides = {t: stride for t, index in large if (stride := _stride(op, t, index)) is not None}
        return PackedLines(out, count, shape[-1], strides) if large and all(t in strides for t, _ in large) else None

    def apply(self, s: te.Schedule) -> tuple[te.Tensor, list[te.IterVar], te.Tensor]:
        """Schedule the output; returns it, the loop over chunks, and the lines computed there, of two dimensions."""
        lines = self._merged(s)
        out = s.outputs[0].output(0)
        *outer, last = s[out].op.axis
        chunk, within = s[out].split(s[out].fuse(*outer), factor=self.count)
        s[out].pragma(chunk, "loop_partition_hint")
        vectors, vector = s[out].split(s[out].fuse(within, last), factor=LINE_BYTES // out.dtype.nbytes)
        s[out].vectorize(vector)
        self._ask_ahead(s, out, lines, vectors)
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

    def _ask_ahead(self, s: te.Schedule, out: te.Tensor, lines: te.Tensor, vectors: te.IterVar) -> None:
        """Ask, with each cache line of the output that is stored, for what later chunks are made of."""
        assert isinstance(lines.op, te.ComputeOp)
        steps = self.count * rows_ahead(self.count * self.width * out.dtype.nbytes)
        for tensor, index in reads(lines.op):
            if tensor in self.strides:
                later = read_later(lines.op.axis, index, 0, steps)
                widened = max(tensor.dtype.nbytes // out.dtype.nbytes, 1)
                s[out].prefetch_line(tensor, vectors, self._place(tensor, later), lines=widened)

    def _place(self, tensor: te.Tensor, later: Callable[..., list[PrimExpr]]) -> Callable[..., list[PrimExpr]]:
        """The same place of a later chunk, about: borders change it by a few elements.

        `later` gives it for a line and a column; that is worked out for the first line of a chunk only.
        """
        size, gap = self.count * self.width, self.strides[tensor] - self.width

        def place(*first: PrimExpr) -> list[PrimExpr]:
            flat = ravel_index(first, self.out.shape)
            begin = ravel_index(later(flat // size * self.count, const(0)), tensor.shape)
            return [begin + flat % size + flat % size // self.width * gap]

        return place


def _stride(op: te.ComputeOp, tensor: te.Tensor, index: Sequence[PrimExpr]) -> int | None:
    """How many elements of `tensor` lie between the places that neighbouring lines of `op` are read from.

    None where it isn't read in the order of the output: it is judged by in the middle, where there are no borders.
    """
    place, analyzer = ravel_index(index, list(tensor.shape)), Analyzer()
    extents = [constant_size([axis.extent]) for axis in op.axis]
    middle = {axis.var: const(extent // 2) for axis, extent in zip(op.axis, extents, strict=True)}

    def apart(number: int) -> int | None:
        var = op.axis[number].var
        values = {**middle, var: const(extents[number] // 2 - 1)}
        return as_int(analyzer.simplify(substitute(place, middle) - substitute(place, values)))

    strides = [apart(n) for n, extent in enumerate(extents) if extent > 1]
    known = [stride for stride in strides if stride is not None]
    in_order = len(known) == len(strides) > 1 and known == sorted(known, reverse=True) and known[-1] == 1
    return known[-2] if in_order else None
