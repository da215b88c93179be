"""Lines of an output, its innermost dimension: how they are computed by vectors, and packed where they are unaligned.

A plan says what is prefetched of the lines that are read, whether a vector takes several lines, and whether lines are
packed into whole cache lines before they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from relayc import te
from relayc.backend.vector_math import EXPANSIONS
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused
from relayc.te.tir import Call, FloorDiv, FloorMod, IterVar, PrimExpr, Range, Select, Var, as_int, const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import conditions, depend_on_data, large_shape, reads
from relayc.topi.cpu.common import attach, fuses_inner
from relayc.topi.cpu.elements import elements_per_step
from relayc.topi.cpu.elementwise.line_reads import LineRead, line_reads
from relayc.topi.cpu.prefetch import (
    LINE_BYTES,
    elements_ahead,
    has_line_vectors,
    is_beyond_caches,
    is_streamed,
    prefetch_places,
    rows_ahead,
    rows_of_whole_lines,
)
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind
from relayc.topi.tag import PAD
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["LineVectors", "Lines"]

_MOST_UNROLLED = 8
"""Most vectors of a line that are unrolled where conditions on lanes become static by that."""
_SEVERAL = 4
"""Fewest vectors of a line whose borders are computed apart, and whose reads are prefetched."""
_MOST_LINES, _FEWEST_LINES = 16, 4
"""Most cache lines of a vector of several lines, and the fewest where inputs are joined, whose reads are not whole
cache lines."""
_PART_OF_L1 = 4
"""Divisor of the L1 size: inputs up to that, read again for each line, cost nothing."""
_PART_OF_L2 = 16
"""Divisor of the L2 size: the largest chunk; the ends of longer lines matter little."""
_SHORTEST_BYTES, _SHORTEST_MASKED, _LEAST_BYTES = 32, 16, 1024
"""Shortest lines that are packed, in bytes; shortest ones with masked loads, which are slow without prefetches; and the
least bytes of a chunk where lines are shorter than cache lines."""
_SHORT_CHUNK, _SHORT_LINE = 48, 768
"""For cores with few line-fill buffers: most cache lines of a chunk whose stores overlap with packing of the next one
(an out-of-order window of some 300 instructions), and the length in bytes below which padded lines of larger chunks are
stored unpacked; for longer ones the shared cache lines cost more than the stalls."""


@dataclass(frozen=True, eq=False)
class Lines:
    """The lines of `out`, into which its group is inlined; `vectors` of `lanes` elements are computed together."""

    out: te.Tensor
    lanes: int
    vectors: int
    target: Target

    def __str__(self) -> str:
        return f"{self.length} elements of {self.out.dtype}, vectors of {self.lanes}"

    @property
    def length(self) -> te.Dim:
        """Elements of a line; of a single one, as many as are assumed."""
        return self.out.shape[-1] if self.out.ndim > 1 else constant_size(self.out.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a line."""
        return constant_size(self.out.shape[-1:]) * self.out.dtype.nbytes

    @property
    def outer(self) -> list[int]:
        """Sizes of the dimensions in front of lines."""
        return [constant_size([d]) for d in self.out.shape[:-1]]

    @property
    def are_several_vectors(self) -> bool:
        """Whether a line is longer than a few vectors."""
        return constant_size([self.length]) >= _SEVERAL * self.lanes

    @cached_property
    def conditions(self) -> list[tuple[te.ComputeOp, PrimExpr]]:
        """The conditions that decide what is read, with their operations."""
        return list(conditions(self.out.op))

    @cached_property
    def reads(self) -> Sequence[LineRead]:
        """The reads of large inputs; none if one is not read in the order of the output."""
        return line_reads(self.out.op) or ()

    @cached_property
    def choosing(self) -> list[te.ComputeOp]:
        """The operations whose conditions depend on the place in a line and not on data."""
        column = self.out.op.axis[-1].var
        return [op for op, e in self.conditions if column in post_order((e,)) and not depend_on_data([e])]

    @property
    def has_borders(self) -> bool:
        """Whether the only conditions on the place in a line, of several vectors, are those of padding."""
        return self.are_several_vectors and bool(self.choosing) and all(op.tag == PAD for op in self.choosing)

    @property
    def period(self) -> int | None:
        """The period of lines whose place all reads take modulo that (as `tile` does).

        It must divide the line, and not the vector, whose lanes are static then anyway.
        """
        column, extent = self.out.op.axis[-1].var, self.out.shape[-1]
        remainders = {e for _, index in reads(self.out.op) for e in post_order(index) if isinstance(e, FloorMod)}
        found = {as_int(e.b) for e in remainders if e.a is column}
        period = found.pop() if len(found) == 1 else None
        if not period or not isinstance(extent, int) or self.lanes % period == 0:
            return None
        return period if extent > period and extent % period == 0 else None

    @property
    def places_are_known(self) -> bool:
        """Whether the elements that a vector of whole lines reads have static distances from each other.

        Indices may depend in any way on the place in a line, but not on data, and must be affine in the line.
        """
        indices = [index for _, index in reads(self.out.op)]
        decided = [condition for _, condition in self.conditions]
        if depend_on_data([*decided, *[i for index in indices for i in index]]):
            return False
        uneven = [e for index in indices for e in post_order(index) if isinstance(e, FloorDiv | FloorMod)]
        return not any(self.out.op.axis[-2].var in post_order((e,)) for e in [*decided, *uneven])

    def skips(self, read: LineRead) -> bool:
        """Whether whole cache lines lie between what is read for one line and for the next."""
        apart = read.stride - read.parts * constant_size(self.out.shape[-1:])
        return apart * read.tensor.dtype.nbytes >= LINE_BYTES

    @cached_property
    def nodes(self) -> list[PrimExpr]:
        """The expressions of all operations that are inlined."""
        inlined = [op for op in operations_behind([self.out]) if isinstance(op, te.ComputeOp)]
        return [e for op in inlined for e in post_order(op.body) if isinstance(e, PrimExpr)]

    @property
    def are_read_by_masks(self) -> bool:
        """Whether 64-byte vectors are selected from, and so loaded by masks, in which no stream is detected (Zen 5)."""
        return has_line_vectors(self.target) and any(isinstance(e, Select) for e in self.nodes)

    @property
    def are_fetched(self) -> bool:
        """Whether the hardware prefetcher covers the inputs: sequential lines, with little other work."""
        large = {read.tensor for read in self.reads}
        others = {tensor for tensor, _ in reads(self.out.op)} - large
        busy = self.are_read_by_masks or any(isinstance(e, Call) and e.op in EXPANSIONS for e in self.nodes)
        again = sum(constant_size(t.shape) * t.dtype.nbytes for t in others)
        most = self.target.cache_bytes.l1 // _PART_OF_L1
        return all(read.parts == 1 for read in self.reads) and not busy and again <= most


@dataclass(frozen=True, slots=True)
class LineVectors:
    """Vectors of `elements` of each line or, where lines are `joined`, of whole lines.

    A last vector that is not full computes some elements twice, with the `tail` "shift", or is masked. Where loops are
    `partitioned`, vectors at borders and the last one are split off, so that others need no tests. Lines of a `period`
    have a loop over periods. The loop over vectors may be `unrolled`, to make conditions on lanes static. The reads
    `fetched` are prefetched, to a `level` of the caches, and with `written` the output. With a `chunk`, so many lines
    are packed into whole cache lines in a buffer in L1 or L2, and stored from there. A line of `buffered` is computed
    for each line first, since it serves several elements.
    """

    lines: Lines
    elements: int
    tail: Literal["guard", "shift"]
    partitioned: bool = False
    joined: bool = False
    period: int = 0
    unrolled: bool = False
    fetched: Sequence[LineRead] = ()
    level: int = 1
    written: bool = False
    chunk: int = 0
    buffered: te.Tensor | None = None

    @staticmethod
    def in_order(lines: Lines, *, alone: bool) -> LineVectors:
        """Vectors along a line, between borders if it has any; `alone`: the output is the only one."""
        if lines.has_borders:
            return LineVectors.between_borders(lines)
        period = lines.period
        extent = period or lines.length
        elements, tail = elements_per_step(extent, lines.lanes, lines.vectors), "guard"
        unrolled = False
        if isinstance(extent, int):
            elements, tail = min(elements, max(extent, 1)), "shift"
            unrolled = extent <= _MOST_UNROLLED * lines.lanes and bool(lines.choosing)
        plan = LineVectors(lines, elements, tail, period=period or 0, unrolled=unrolled)
        return plan._prefetched() if alone and not period else plan

    @staticmethod
    def between_borders(lines: Lines, buffered: te.Tensor | None = None) -> LineVectors:
        """Two vectors at a time, of which those that reach over borders are computed apart."""
        tail = "guard" if isinstance(lines.out.shape[-1], int) else "shift"
        return LineVectors(lines, 2 * lines.lanes, tail, partitioned=True, buffered=buffered)

    @staticmethod
    def of_several(lines: Lines, *, joins: bool) -> LineVectors | Refused:
        """Vectors of lines that are whole cache lines together; refused where they are long, or too many for a vector.

        `joins`: inputs may be joined or indexed in any way, so that it is worth it only if places are static. A last
        vector that is not full is masked, by loop partitioning, or computed twice where the loop over vectors will be
        part of a fused parallel loop, which can't be partitioned: masks of hundreds of lanes in its body took LLVM
        minutes.
        """
        out, target = lines.out, lines.target
        if out.ndim < 2 or (joins and not lines.places_are_known):
            return Refused("there is one row, or elements do not depend on their place in rows alone")
        (rows, columns), line = out.shape[-2:], LINE_BYTES // out.dtype.nbytes
        if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
            return Refused("rows are dynamic, or at least a cache line")
        count = rows_of_whole_lines(lines.nbytes, (_FEWEST_LINES if joins else 1) * LINE_BYTES)
        if count > rows or columns * count > _MOST_LINES * line:
            return Refused(f"{count} rows are whole cache lines together: there are fewer, or those are too many")
        outer = out.op.axis[:-2]
        tail = "shift" if outer and fuses_inner(outer, target) else "guard"
        fetched = lines.reads if is_beyond_caches(out, target) and lines.are_read_by_masks else ()
        return LineVectors(lines, columns * count, tail, partitioned=True, joined=True, fetched=fetched)

    @staticmethod
    def interleaved(lines: Lines) -> LineVectors:
        """Vectors of as many short lines as a vector of the input has elements, two at a time where there are many."""
        extent, lanes = constant_size(lines.out.shape[-2:]), lines.lanes * constant_size(lines.out.shape[-1:])
        return LineVectors(lines, min(elements_per_step(extent, lanes), extent), "shift", joined=True)

    @staticmethod
    def packed(lines: Lines) -> LineVectors | Refused:
        """Chunks of lines; refused where caches hold the output, lines are whole cache lines, or chunks too large.

        Such lines share cache lines with the next ones, so that their own stores can't be non-temporal: those of padded
        planes, of concatenations and of broadcasts. Large inputs must be read in memory order.
        """
        out, target, few = lines.out, lines.target, has_few_fill_buffers(lines.target)
        shape = large_shape(out, target)
        if isinstance(shape, Refused):
            return shape
        masked = any(isinstance(source.body[0], Call) for source, _ in lines.conditions)
        by_masks = masked and not (few and has_line_vectors(target))  # else stored unpacked
        count = rows_of_whole_lines(lines.nbytes, _LEAST_BYTES if lines.nbytes < LINE_BYTES else 1)
        chunk, shortest = count * lines.nbytes, _SHORTEST_MASKED if by_masks else _SHORTEST_BYTES
        fits = lines.nbytes >= shortest and chunk <= target.cache_bytes.l2 // _PART_OF_L2
        inputs = lines.reads if fits and count > 1 else ()
        if not inputs:
            return Refused("rows are whole cache lines, or too short or long, or inputs not read in memory order")
        is_one, stalls = len(inputs) == 1, chunk > _SHORT_CHUNK * LINE_BYTES and lines.nbytes < _SHORT_LINE
        if few and lines.conditions and is_one and stalls:
            return Refused(f"chunks of {chunk} bytes stall a core with few line-fill buffers")
        level = 2 if few and not is_one and chunk <= target.cache_bytes.l1 // 4 else 1
        return replace(LineVectors.in_order(lines, alone=False), chunk=count, fetched=inputs, level=level)

    def _prefetched(self) -> LineVectors:
        """The plan with prefetches of later inputs where the hardware prefetcher does not cover them.

        On cores with few line-fill buffers, inputs of which only a part of each line is read are prefetched alone, to
        L2: hardware prefetchers fetch what lies between such runs, too, or stop at each.

        Otherwise, where the output exceeds the caches and lines are several vectors, all are, in memory order, through
        all parts of a line. Where lines are not whole cache lines, so that stores can't be non-temporal and read before
        they write, the output is prefetched for writing, too; with little arithmetic only for 64-byte vectors, whose
        stores cross cache lines.
        """
        lines, target = self.lines, self.lines.target
        few, far = has_few_fill_buffers(target), lines.are_several_vectors and is_beyond_caches(lines.out, target)
        runs = [r for r in lines.reads if lines.skips(r) and is_streamed(r.tensor, 1, target)] if few else []
        if runs:
            return replace(self, fetched=runs, level=2)
        whole = lines.nbytes % LINE_BYTES == 0
        if not far or not lines.reads or ((whole or not has_line_vectors(target)) and lines.are_fetched):
            return self
        return replace(self, fetched=lines.reads, written=not whole)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of vectors, or over chunks, outermost first."""
        out = self.lines.out
        if self.chunk:
            return [self._store_chunks(s)]
        *outside, vectors = loops = self._vectorize(s, out)
        if self.buffered is not None:
            attach(s, self.buffered, out, outside[-1])
            line = Lines(self.buffered, vector_lanes(self.lines.target), 1, self.lines.target)
            LineVectors.between_borders(line)._vectorize(s, self.buffered)
            return outside
        self._prefetch(s, vectors)
        return loops

    def _vectorize(self, s: te.Schedule, stage: te.Tensor) -> list[te.IterVar]:
        """Vectorise lines where they are computed; returns the loops outside of vectors."""
        *outer, last = s[stage].op.axis
        if self.joined:
            last = s[stage].fuse(outer.pop(), last)
        if self.period:
            repeat, last = s[stage].split(last, factor=self.period)
            outer.append(repeat)
        least = 2 * self.elements if self.partitioned else 0
        vectors, vector = s[stage].split(last, factor=self.elements, tail=self.tail, least=least)
        s[stage].vectorize(vector)
        for axis in (*outer, vectors, vector) if self.partitioned else ():
            s[stage].pragma(axis, "loop_partition_hint")
        return [*outer, vectors]

    def _store_chunks(self, s: te.Schedule) -> te.IterVar:
        """Store by cache lines what is computed in a buffer; returns the loop over chunks.

        The inputs of later chunks are prefetched, with each cache line that is stored.
        """
        rows = self._collapse(s)
        out = s.current(self.lines.out)
        *outer, column = s[out].op.axis
        chunk, within = s[out].split(s[out].fuse(*outer), factor=self.chunk)
        s[out].pragma(chunk, "loop_partition_hint")
        vectors, vector = s[out].split(s[out].fuse(within, column), factor=LINE_BYTES // out.dtype.nbytes)
        s[out].vectorize(vector)
        for read in self.fetched:
            widened = max(read.parts * read.tensor.dtype.nbytes // out.dtype.nbytes, 1)
            s[out].prefetch(read.tensor, vectors, te.Prefetch(0, self.level, self._in_later_chunk(read), widened))
        attach(s, rows, out, chunk)
        *_, vectors = self._vectorize(s, rows)
        if self.unrolled:
            s[rows].unroll(vectors)
        return chunk

    def _collapse(self, s: te.Schedule) -> te.Tensor:
        """Recompute the output from a stage with all dimensions in front of lines collapsed; returns that."""
        out, op, shape = self.lines.out, self.lines.out.op, self.lines.outer
        assert isinstance(op, te.ComputeOp)
        *outer, column = op.axis
        place = IterVar(Range(0, math.prod(shape)), Var("place"), "data")
        values = {axis.var: i for axis, i in zip(outer, unravel_index(place.var, shape), strict=True)}
        body = [substitute(e, values) for e in op.body]
        lines = te.ComputeOp(op.name, op.tag, op.attrs, [place, column], body).output(0)
        in_shape = lambda *i: lines(ravel_index(i[:-1], shape), i[-1])  # noqa: E731
        s.recompute(out, te.compute(out.shape, in_shape, name=op.name, tag="injective"))
        return s.current(lines)

    def _in_later_chunk(self, read: LineRead) -> Callable[..., list[PrimExpr]]:
        """Return the approximate place of the same read in a later chunk; padding shifts it by a few elements.

        It is computed once per chunk, for its first line.
        """
        out = self.lines.out
        width = constant_size(out.shape[-1:])
        size, gap = self.chunk * width, read.stride - read.parts * width
        steps = self.chunk * rows_ahead(size * out.dtype.nbytes)
        last = math.prod(self.lines.outer) - 1

        def place(*first: PrimExpr) -> list[PrimExpr]:
            flat = ravel_index(first, out.shape)
            begin = te.min(flat // size * self.chunk + steps, last)
            start = read.place([*unravel_index(begin, self.lines.outer), const(0)])
            return [start + flat % size * read.parts + flat % size // width * gap]

        return place

    def _prefetch(self, s: te.Schedule, vectors: te.IterVar) -> None:
        """Prefetch what is read some kilobytes after the elements of a vector, through all parts of its line."""
        out, target = self.lines.out, self.lines.target
        for read in self.fetched:
            size, in_order = read.tensor.dtype.nbytes, read.stride == constant_size(out.shape[-1:])
            ahead = elements_ahead(size, target) if in_order else rows_ahead(read.stride * size) * read.stride
            count = -(-read.parts * self.elements * size // LINE_BYTES)
            s[out].prefetch(read.tensor, vectors, te.Prefetch(ahead, self.level, read.through_parts, count))
        if self.written:
            ahead = te.Prefetch(elements_ahead(out.dtype.nbytes, target), written=True)
            prefetch_places(s, out, out, vectors, ahead, self.elements)
