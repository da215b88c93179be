"""Softmax of short rows on CPUs: adjacent rows are flattened into one line, which is computed in whole vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import attach, parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches
from relayc.topi.cpu.reductions.flattened_rows import FlattenedRows
from relayc.topi.groups import constant_size, has_gaps, inline_injective
from relayc.topi.reduction import largest_number
from relayc.topi.unshifted_softmax import (
    can_be_unshifted,
    clamp_logarithm,
    element_of,
    factor_of,
    is_logarithm,
    speculate,
    stages_of,
)

if TYPE_CHECKING:
    from relayc.topi.cpu.norms.facts import RowFacts

__all__ = ["FlattenedSoftmax"]

_FLOAT_BYTES = 4
_LINE_FACTOR = 2
"""Factor on the lines taken together where exponentials are kept: the latency of the last sum and of the division is
paid half as often. That took 6 % less time for rows of 49 float16 and 15 % for rows of 10 float32, but more for
logarithms, which keep sums only."""


@dataclass(frozen=True)
class FlattenedSoftmax:
    """Softmax of adjacent rows along its last dimension, on flattened rows.

    Exponentials are unshifted (`topi.unshifted_softmax`) and computed in memory order, in whole vectors without masks,
    whatever the length of rows. Vectors that start at each row add them up, the lane sums of all rows are computed
    together, and the reciprocals of the sums are shuffled to the lanes of their rows. A stage that reads anything
    else than its own element goes row by row.
    """

    rows: RowFacts
    line: FlattenedRows

    @staticmethod
    def of(rows: RowFacts) -> FlattenedSoftmax | Refused:
        """Match a softmax kernel; refused where rows are long or few, or the result has another shape."""
        anchor, out = rows.anchor, rows.out
        if not rows.are_last or not rows.has_one_result or not can_be_unshifted(anchor):
            return Refused("no softmax along the last dimension, of one result, whose exponentials can be unshifted")
        line = FlattenedRows.of(rows.result.shape, rows.target)
        if not line:
            return line
        if stages_of(anchor)[0].dtype.nbytes != _FLOAT_BYTES or out.shape != rows.result.shape:
            return Refused("statistics are not float32, or the result of the kernel has another shape than the softmax")
        return FlattenedSoftmax(rows, line.of_results(out, 1 if is_logarithm(anchor) else _LINE_FACTOR))

    def _is_in_memory_order(self, op: te.Operation) -> bool:
        """True if an elementwise operation reads inputs at its own indices, or its row's, in memory order."""
        own = [axis.var for axis in op.axis]
        return not has_gaps(op.output(0)) and all(index in (own, own[:-1]) for _, index in reads(op))

    def schedule(self) -> te.Schedule:
        """Compute exponentials, sums, reciprocals and results for one vector of rows per iteration."""
        s, anchor = self.rows.create_schedule(), self.rows.anchor
        clamp_logarithm(s, anchor)
        largest, exact, total = stages_of(anchor)
        element = element_of(largest.op, self.rows.axes[0])
        of_total = factor_of(anchor)
        maxima, lanes_of_maxima = self.line.by_lanes(element, largest_number, "softmax_max")
        s.recompute(largest, maxima)
        exact_sums, lanes_of_exact = self.line.by_lanes(s.current(exact), te.sum, "softmax_sum")
        s.recompute(total, exact_sums)
        exponentials, sums, of_sums = speculate(s, anchor, self.rows.axes[0], keep=True)
        assert exponentials is not None
        out = s.outputs[0].output(0)
        inline_injective(s, [out], keep=[s[of_total].op])
        if anchor is not self.rows.out.op:
            s[anchor].compute_inline()
        group = self._loops(s, out)
        for tensor in (largest, exact, total, of_total):
            attach(s, tensor, out, group)
        for tensor in (of_total, *of_sums):
            s[tensor].vectorize(s[tensor].op.axis[-1])
        self.line.schedule_exponentials(s, exponentials, along=self._is_in_memory_order(s[exponentials].op))
        all_rows = self.line.add_up(s, sums)
        if of_sums:  # only the sums need exponentials
            attach(s, exponentials, sums, all_rows)
        vectorize_elements(s, exact, s[exact].op.axis[-1], self.line.length, self.line.lanes)
        self.line.vectorize_fallback(s, (largest, lanes_of_maxima), (total, lanes_of_exact))
        return s

    def _loops(self, s: te.Schedule, out: te.Tensor) -> te.IterVar:
        """Split `out` into groups of rows, stored by cache lines across row ends; returns the loop over groups."""
        *lead, row, column = s[out].op.axis
        count, length = self.line.count, self.line.length
        group, within = s[out].split(row, factor=count, tail="shift")
        line = max(self.line.lanes, LINE_BYTES // out.dtype.nbytes)
        if length % line and self._is_in_memory_order(s[out].op):
            vectors, vector = s[out].split(s[out].fuse(within, column), factor=line, tail="shift")
            s[out].unroll(vectors)
            s[out].vectorize(vector)
        else:
            vectorize_elements(s, out, column, length, line)
        loop = parallel_outer(s, out, [*lead, group], self.rows.work, self.line.target)[-1]
        shifted, ends = constant_size(out.shape[-2:-1]) % count, length * out.dtype.nbytes % LINE_BYTES
        if loop is group and shifted and ends and is_beyond_caches(out, self.line.target):
            s[out].pragma(group, "last_apart")  # all groups but the last start at a cache line
        return loop
