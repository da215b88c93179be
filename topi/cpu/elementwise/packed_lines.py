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

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Call, IterVar, PrimExpr, Range, Var, const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import conditions
from relayc.topi.cpu.elementwise.line_reads import LineRead, line_reads
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches, rows_ahead
from relayc.topi.cpu.tiling import has_few_fill_buffers
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PackedLines"]

_PART_OF_L2 = 16
"""A chunk is at most this part of the second-level cache: of longer lines ends matter little."""
_SHORTEST_BYTES, _SHORTEST_MASKED, _LEAST_BYTES = 32, 16, 1024
"""Lines that are put together, at least, and those that are read by masks, which takes long where memory isn't asked
for; and what chunks have at least where lines are shorter than cache lines."""
_PLANES_BYTES = 8192
"""What chunks of whole planes have at least."""
_SHORT_CHUNK, _SHORT_LINE = 48, 768
"""Where a core waits for few lines: cache lines of a chunk, at most, whose storing goes on while the next is put
together (some 300 instructions are on their way at a time), and bytes of lines with borders that are stored as they are
otherwise: what longer ones share with the next costs more than waiting."""


@dataclass(frozen=True, slots=True)
class PackedLines:
    """Chunks of `count` places of `out`: lines, or planes; the dimensions behind are its last `behind`, the others one.

    Large inputs are read in the order of memory (`inputs`). `near`: what is read ahead is asked into the first-level
    cache, else into the second.
    """

    out: te.Tensor
    count: int
    behind: int
    inputs: Sequence[LineRead]
    near: bool

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
        borders = list(conditions(op))
        masked = [condition for source, condition in borders if isinstance(source.body[0], Call)]
        few, line = has_few_fill_buffers(target), shape[-1] * size
        by_masks = bool(masked) and not (few and target.vector_bytes >= LINE_BYTES)  # else stored as they are
        planes = by_masks and any(op.axis[-2].var in post_order((condition,)) for condition in masked)
        found = _planes(shape, size, target) if planes else None
        found = found or _lines(line, _SHORTEST_MASKED if by_masks else _SHORTEST_BYTES, target)
        inputs = line_reads(op) if found else None
        if not found or not inputs:
            return None
        chunk, behind = found[0] * line, found[1]
        if few and borders and len(inputs) == behind == 1 and chunk > _SHORT_CHUNK * LINE_BYTES and line < _SHORT_LINE:
            return None
        are_apart = few and len(inputs) > 1 and chunk <= target.cache_bytes.l1 // 4
        return PackedLines(out, *found, inputs, near=not are_apart)

    def apply(self, s: te.Schedule) -> tuple[te.Tensor, list[te.IterVar], te.Tensor]:
        """Schedule the output; returns it, the loop over chunks, and the lines computed there, of two dimensions."""
        lines = self._merged(s)
        out = s.outputs[0].output(0)
        axes = s[out].op.axis
        chunk, within = s[out].split(s[out].fuse(*axes[: -self.behind]), factor=self.count)
        s[out].pragma(chunk, "loop_partition_hint")
        inside = s[out].fuse(within, *axes[-self.behind :])
        vectors, vector = s[out].split(inside, factor=LINE_BYTES // out.dtype.nbytes)
        s[out].vectorize(vector)
        self._prefetch_ahead(s, out, vectors)
        s[lines].set_scope("local")
        s[lines].compute_at(s[out], chunk)
        return out, [chunk], lines

    def _merged(self, s: te.Schedule) -> te.Tensor:
        """What the output is read from now: it as lines or planes, numbered by the first dimension."""
        op, shape = self.out.op, self._outer
        assert isinstance(op, te.ComputeOp)
        outer, behind = op.axis[: len(shape)], op.axis[len(shape) :]
        place = IterVar(Range(0, math.prod(shape)), Var("place"), "data")
        values = {axis.var: i for axis, i in zip(outer, unravel_index(place.var, shape), strict=True)}
        body = [substitute(e, values) for e in op.body]
        lines = te.ComputeOp(op.name, op.tag, op.attrs, [place, *behind], body).output(0)

        def in_shape(*i: Any) -> PrimExpr:
            return lines(ravel_index(i[: len(shape)], shape), *i[len(shape) :])

        s.recompute(self.out, te.compute(self.out.shape, in_shape, name=op.name, tag="injective"))
        return s.current(lines)

    def _prefetch_ahead(self, s: te.Schedule, out: te.Tensor, vectors: te.IterVar) -> None:
        """Ask, with each cache line of the output that is stored, for what later chunks are made of."""
        for read in self.inputs:
            widened = max(read.parts * read.tensor.dtype.nbytes // out.dtype.nbytes, 1)
            s[out].prefetch_line(read.tensor, vectors, self._place(read), lines=widened, to_l1=self.near)

    def _place(self, read: LineRead) -> Callable[..., list[PrimExpr]]:
        """The same place of a later chunk, about: borders change it by a few elements.

        It is worked out for the first line of a chunk only.
        """
        behind = [constant_size([d]) for d in self.out.shape[-self.behind :]]
        size, width = self.count * math.prod(behind), behind[-1]
        gap = read.stride - read.parts * width
        steps = self.count * rows_ahead(size * self.out.dtype.nbytes)
        last = math.prod(self._outer) - 1

        def place(*first: PrimExpr) -> list[PrimExpr]:
            flat = ravel_index(first, self.out.shape)
            begin = te.min(flat // size * self.count + steps, last)
            start = read.place([*unravel_index(begin, self._outer), *[const(0)] * self.behind])
            return [start + flat % size * read.parts + flat % size // width * gap]

        return place

    @property
    def _outer(self) -> list[int]:
        """The sizes of the dimensions that places are counted by."""
        return [constant_size([d]) for d in self.out.shape[: -self.behind]]


def _lines(line: int, shortest: int, target: Target) -> tuple[int, int] | None:
    """So many lines of `line` bytes, whole cache lines, and one dimension behind; None where they are many."""
    count = LINE_BYTES // math.gcd(line, LINE_BYTES)
    count *= -(-_LEAST_BYTES // (count * line)) if line < LINE_BYTES else 1
    fits = shortest <= line and count * line <= target.cache_bytes.l2 // _PART_OF_L2
    return (count, 1) if fits and count > 1 else None


def _planes(shape: Sequence[int], size: int, target: Target) -> tuple[int, int] | None:
    """So many planes of short lines, which are whole cache lines, and two dimensions behind.

    Which line of a plane one is, of lines counted through, takes divisions; inside of planes it is a loop.
    """
    line, plane = shape[-1] * size, math.prod(shape[-2:]) * size
    count = LINE_BYTES // math.gcd(plane, LINE_BYTES)
    count *= max(_PLANES_BYTES // (count * plane), 1)
    fits = line <= LINE_BYTES and count * plane <= target.cache_bytes.l1 // 2
    return (count, 2) if fits and count <= math.prod(shape[:-2]) else None
