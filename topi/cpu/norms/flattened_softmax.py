"""Softmax of short rows on CPUs: adjacent rows are flattened into one line, which is computed in whole vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import attach, parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.norms.transposed_rows import TransposedRows
from relayc.topi.cpu.prefetch import LINE_BYTES, has_line_vectors, is_beyond_caches
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

__all__ = ["flattened_softmax"]

_FLOAT_BYTES = 4
_LINE_FACTOR = 2
"""Factor on the lines taken together where exponentials are kept: the latency of the last sum and of the division is
paid half as often. That took 6 % less time for rows of 49 float16 and 15 % for rows of 10 float32, but more for
logarithms, which keep sums only."""
_FEWEST, _FEWEST_OF_LOGARITHM, _FEWEST_OF_SHORT_VECTORS = 8, 12, 16
"""Shortest rows, in elements, that are faster flattened than transposed in registers; those of a log-softmax, which
also wait for the logarithm of their sum, with vectors of a cache line and with shorter ones."""


def flattened_softmax(rows: RowFacts) -> te.Schedule | Refused:
    """A candidate: softmax of adjacent rows along its last dimension, on flattened rows.

    Exponentials are unshifted (`topi.unshifted_softmax`) and computed in memory order, in whole vectors without masks,
    whatever the length of rows. Vectors that start at each row add them up, the lane sums of all rows are computed
    together, and the reciprocals of the sums are shuffled to the lanes of their rows. A stage that reads anything
    else than its own element goes row by row.
    """
    anchor, out = rows.anchor, rows.out
    if not rows.are_last or not rows.has_one_result or not can_be_unshifted(anchor):
        return Refused("no softmax along the last dimension, of one result, whose exponentials can be unshifted")
    line = FlattenedRows.of(rows.result.shape, rows.target)
    if not line:
        return line
    if stages_of(anchor)[0].dtype.nbytes != _FLOAT_BYTES or out.shape != rows.result.shape:
        return Refused("statistics are not float32, or the result of the kernel has another shape than the softmax")
    fewest = _FEWEST
    if is_logarithm(anchor):
        fewest = _FEWEST_OF_LOGARITHM if has_line_vectors(rows.target) else _FEWEST_OF_SHORT_VECTORS
    if line.length < fewest and TransposedRows.of(rows):
        return Refused(f"rows of {line.length} elements, fewer than {fewest}, are faster transposed in registers")
    return _by_lines(rows, line.of_results(out, 1 if is_logarithm(anchor) else _LINE_FACTOR))


def _by_lines(rows: RowFacts, line: FlattenedRows) -> te.Schedule:
    """Compute exponentials, sums, reciprocals and results for one vector of rows per iteration."""
    s, anchor = rows.create_schedule(), rows.anchor
    clamp_logarithm(s, anchor)
    largest, exact, total = stages_of(anchor)
    element = element_of(largest.op, rows.axes[0])
    of_total = factor_of(anchor)
    maxima, lanes_of_maxima = line.by_lanes(element, largest_number, "softmax_max")
    s.recompute(largest, maxima)
    exact_sums, lanes_of_exact = line.by_lanes(s.current(exact), te.sum, "softmax_sum")
    s.recompute(total, exact_sums)
    exponentials, sums, of_sums = speculate(s, anchor, rows.axes[0], keep=True)
    assert exponentials is not None
    out = s.outputs[0].output(0)
    inline_injective(s, [out], keep=[s[of_total].op])
    if anchor is not rows.out.op:
        s[anchor].compute_inline()
    group = _loop_over_groups(s, out, rows, line)
    for tensor in (largest, exact, total, of_total):
        attach(s, tensor, out, group)
    for tensor in (of_total, *of_sums):
        s[tensor].vectorize(s[tensor].op.axis[-1])
    vectorize_elements(s, exact, s[exact].op.axis[-1], line.length, line.lanes)
    line.apply(
        s, exponentials, sums, (largest, lanes_of_maxima), (total, lanes_of_exact),
        along=_is_in_memory_order(s[exponentials].op), only_summed=bool(of_sums),
    )  # fmt: skip
    return s


def _loop_over_groups(s: te.Schedule, out: te.Tensor, rows: RowFacts, line: FlattenedRows) -> te.IterVar:
    """Split `out` into groups of rows, stored by cache lines across row ends; returns the loop over groups."""
    *lead, row, column = s[out].op.axis
    group, within = s[out].split(row, factor=line.count, tail="shift")
    stored = max(line.lanes, LINE_BYTES // out.dtype.nbytes)
    if line.length % stored and _is_in_memory_order(s[out].op):
        vectors, vector = s[out].split(s[out].fuse(within, column), factor=stored, tail="shift")
        s[out].unroll(vectors)
        s[out].vectorize(vector)
    else:
        vectorize_elements(s, out, column, line.length, stored)
    loop = parallel_outer(s, out, [*lead, group], rows.work, line.target)[-1]
    shifted, ends = constant_size(out.shape[-2:-1]) % line.count, line.length * out.dtype.nbytes % LINE_BYTES
    if loop is group and shifted and ends and is_beyond_caches(out, line.target):
        s[out].pragma(group, "last_apart")  # all groups but the last start at a cache line
    return loop


def _is_in_memory_order(op: te.Operation) -> bool:
    """Whether an elementwise operation reads inputs at its own indices, or its row's, in memory order."""
    own = [axis.var for axis in op.axis]
    return not has_gaps(op.output(0)) and all(index in (own, own[:-1]) for _, index in reads(op))
