"""Softmax of short rows on CPUs: rows that lie next to each other are one line, whole vectors of which are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import element_cost, elements_per_step, vectorize_elements
from relayc.topi.cpu.lane_sums import sum_rows
from relayc.topi.cpu.prefetch import (
    LINE_BYTES,
    elements_ahead,
    inputs_of,
    is_beyond_caches,
    is_streamed,
    prefetch_places,
    prefetch_rows,
)
from relayc.topi.cpu.tiling import prefetches_to_l1, vector_lanes
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.reduction import largest_number
from relayc.topi.registry import operations_behind
from relayc.topi.unshifted_softmax import (
    can_be_unshifted,
    clamp_logarithm,
    element_of,
    exponentials_of,
    factor_of,
    is_logarithm,
    speculate_sums,
    stages_of,
    sums_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["FlatRows", "FlattenedRows"]

_MOST_ELEMENTS = 128
"""Of a row: vectors of results are written out for as many rows as a vector has lanes."""
_FLOAT_BYTES = 4
_TIMES_OF_POWERS = 2
"""Lines whose powers are kept: the last sum and what is divided by it are waited for half as often. That took 6 % less
time for 49 numbers of float16 and 15 % for 10 of float32, but more for logarithms, which keep sums only."""


@dataclass(frozen=True)
class FlattenedRows:
    """As many neighbouring rows of `length` elements as a vector has `lanes`: one line of whole vectors.

    `rows` are the dimensions in front. Several such lines are taken `together` where one ends within a cache line.
    """

    rows: tuple[te.Dim, ...]
    length: int
    lanes: int
    target: Target
    together: int = 1

    @staticmethod
    def of(shape: Sequence[te.Dim], target: Target, most: int = _MOST_ELEMENTS) -> FlattenedRows | None:
        """Those of a tensor; None where rows have more elements than `most`, are few, or not known."""
        *rows, length = shape
        lanes = vector_lanes(target)
        if not all(isinstance(d, int) for d in shape) or not rows or constant_size(rows[-1:]) < lanes:
            return None
        found = FlattenedRows(tuple(rows), constant_size([length]), lanes, target)
        return found if found.length <= most else None

    def of_results(self, out: te.Tensor, times: int) -> FlattenedRows:
        """As many lines as are whole cache lines of results, `times` as many, where these go past the caches."""
        together = times * LINE_BYTES // gcd(LINE_BYTES, self.lanes * self.length * out.dtype.nbytes)
        enough = constant_size(self.rows[-1:]) >= together * self.lanes
        return replace(self, together=together) if enough and is_beyond_caches(out, self.target) else self

    @property
    def count(self) -> int:
        """Rows of a line, or of the lines that are together."""
        return self.together * self.lanes

    def by_lanes(
        self, element: Callable[..., PrimExpr], reduction: Callable[..., PrimExpr], name: str
    ) -> tuple[te.Tensor, te.Tensor]:
        """Rows reduced, and what of them each lane of vectors that begin with the rows has."""
        rows, lanes, length = self.rows, self.lanes, self.length
        j, lane = te.reduce_axis((0, -(-length // lanes)), name="j"), te.reduce_axis((0, lanes), name="lane")
        nothing = te.const(0.0, "float32") if reduction is te.sum else te.min_value("float32")

        def of_lane(*i: Any) -> PrimExpr:
            column = j * lanes + i[-1]
            value = element(*i[:-1], column)
            return reduction(value if length % lanes == 0 else te.if_then_else(column < length, value, nothing), axis=j)

        partial = te.compute((*rows, lanes), of_lane, name=f"{name}.lanes")
        return te.compute(rows, lambda *i: reduction(partial(*i, lane), axis=lane), name=name), partial

    def find_exponentials(self, s: te.Schedule, powers: te.Tensor, *, along: bool) -> None:
        """Powers of all rows as one line, later ones being asked for meanwhile.

        Row by row unless they go `along` with memory: what is read of rows is theirs, and in its order.
        """
        *_, row, column = s[powers].op.axis
        shape, elements = powers.shape, self.count * self.length
        if not along:
            vectors = vectorize_elements(s, powers, column, self.length, self.lanes)
            prefetch_rows(s, powers, vectors, constant_size(shape), elements, self.target, always=True)
            return
        vectors = vectorize_elements(s, powers, s[powers].fuse(row, column), elements, self.lanes)
        each, near = elements_per_step(elements, self.lanes), prefetches_to_l1(self.target)
        for tensor in inputs_of(s[powers].op):
            if is_streamed(tensor, elements, self.target):
                ahead = elements_ahead(tensor.dtype.nbytes, self.target, elements)
                prefetch_places(s, powers, tensor, vectors, ahead, each, near=near)

    def add_up(self, s: te.Schedule, sums: te.Tensor) -> te.IterVar:
        """Sums of a group of rows, all in registers. Returns the loop that finds them, an iteration for each line."""
        all_rows, rows = s[sums].split(s[sums].op.axis[-1], nparts=self.together)
        s[sums].tensorize(rows, sum_rows(self.lanes, self.length, len(sums.shape), str(sums.dtype)))
        return all_rows

    def vectorize_again(self, s: te.Schedule, *reductions: tuple[te.Tensor, te.Tensor]) -> None:
        """Vectorise reductions by lanes, row after row, of what could not be trusted."""
        for tensor, lanes in reductions:
            s[lanes].set_scope("local")
            s[lanes].compute_at(s[tensor], s[tensor].op.axis[-1])
            self.vectorize_lanes(s, lanes)

    def vectorize_lanes(self, s: te.Schedule, partial: te.Tensor) -> None:
        *_, lane = s[partial].op.axis
        s[partial].reorder(*s[partial].op.reduce_axis, lane)
        s[partial].vectorize(lane)


@dataclass(frozen=True)
class FlatRows:
    """Neighbouring rows along the last dimension of `anchor`, a softmax.

    Powers of e are those of the elements themselves (`topi.unshifted_softmax`), found in the order of memory: whole
    vectors without masks, whatever the rows' length. Vectors that begin with the rows add them up, lanes are added up
    for all rows together, and one over the sums is shuffled to the lanes that are their rows'. What reads something
    that is not the rows' own, element by element, goes row by row. `out` is the kernel's result.
    """

    anchor: te.ComputeOp
    out: te.Tensor
    line: FlattenedRows

    @staticmethod
    def of(anchor: te.Operation, outs: Sequence[te.Tensor], target: Target) -> FlatRows | None:
        """None where rows are long or few, or what follows has another shape."""
        if len(outs) > 1 or not isinstance(anchor, te.ComputeOp) or not can_be_unshifted(anchor):
            return None
        result = anchor.output(0)
        line = FlattenedRows.of(result.shape, target)
        floats = stages_of(anchor)[0].dtype.nbytes == _FLOAT_BYTES
        if line is None or not floats or outs[0].shape != result.shape:
            return None
        return FlatRows(anchor, outs[0], line.of_results(outs[0], 1 if is_logarithm(anchor) else _TIMES_OF_POWERS))

    def _goes_along(self, op: te.Operation) -> bool:
        """Does an operation of the rows' elements read what is theirs, and in the order of memory?"""
        assert isinstance(op, te.ComputeOp)
        own = [axis.var for axis in op.axis]
        return "memory_strides" not in op.attrs and all(index in (own, own[:-1]) for _, index in reads(op))

    def schedule(self) -> te.Schedule:
        """A vector of rows in each iteration: powers of e, sums, one over them, results."""
        s = te.create_schedule([self.out.op])
        clamp_logarithm(s, self.anchor)
        largest, exact, total = stages_of(self.anchor)
        element = element_of(largest.op, len(self.out.shape) - 1)
        of_total = factor_of(self.anchor)
        maxima, lanes_of_maxima = self.line.by_lanes(element, largest_number, "softmax_max")
        s.recompute(largest, maxima)
        exact_sums, lanes_of_exact = self.line.by_lanes(s.current(exact), te.sum, "softmax_sum")
        s.recompute(total, exact_sums)
        powers = exponentials_of(element, exact)
        sums = sums_of(powers, exact, total)
        of_sums = speculate_sums(s, self.anchor, powers, sums)
        out = s.outputs[0].output(0)
        inline_injective(s, [out], keep=[s[of_total].op])
        if self.anchor is not self.out.op:
            s[self.anchor].compute_inline()
        group = self._loops(s, out)
        for tensor in (largest, exact, total, of_total):
            s[tensor].set_scope("local")
            s[tensor].compute_at(s[out], group)
        for tensor in (of_total, *of_sums):
            s[tensor].vectorize(s[tensor].op.axis[-1])
        self.line.find_exponentials(s, powers, along=self._goes_along(s[powers].op))
        all_rows = self.line.add_up(s, sums)
        if of_sums:  # which alone need powers
            s[powers].set_scope("local")
            s[powers].compute_at(s[sums], all_rows)
        vectorize_elements(s, exact, s[exact].op.axis[-1], self.line.length, self.line.lanes)
        self.line.vectorize_again(s, (largest, lanes_of_maxima), (total, lanes_of_exact))
        return s

    def _loops(self, s: te.Schedule, out: te.Tensor) -> te.IterVar:
        """The loop over groups of rows, of which results are stored a cache line at a time, wherever rows end."""
        *lead, row, column = s[out].op.axis
        count, length = self.line.count, self.line.length
        group, within = s[out].split(row, factor=count, tail="shift")
        line = max(self.line.lanes, LINE_BYTES // out.dtype.nbytes)
        if length % line and self._goes_along(s[out].op):
            vectors, vector = s[out].split(s[out].fuse(within, column), factor=line, tail="shift")
            s[out].unroll(vectors)
            s[out].vectorize(vector)
        else:
            vectorize_elements(s, out, column, length, line)
        work = constant_size(out.shape) * element_cost(operations_behind([self.out]))
        loop = parallel_outer(s, out, [*lead, group], work, self.line.target)[-1]
        shifted, ends = constant_size(out.shape[-2:-1]) % count, length * out.dtype.nbytes % LINE_BYTES
        if loop is group and shifted and ends and is_beyond_caches(out, self.line.target):
            s[out].pragma(group, "last_apart")  # cache lines begin with all groups but that
        return loop
