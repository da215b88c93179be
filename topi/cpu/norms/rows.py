"""Softmax and normalisations of rows on CPUs: row statistics and the elementwise steps that use them, in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.topi.candidates import Candidate, schedule_by
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import rows_use_nontemporal_stores, vectorize_rows
from relayc.topi.cpu.norms.facts import RowFacts, inline_all_but, loop_over_rows, statistics_at
from relayc.topi.cpu.norms.flattened_softmax import flattened_softmax
from relayc.topi.cpu.norms.moments import by_moments, has_moments, image_by_image
from relayc.topi.cpu.norms.strided_axis import schedule_strided
from relayc.topi.cpu.norms.transposed_rows import TransposedRows
from relayc.topi.cpu.prefetch import LINE_BYTES, inputs_of, is_streamed, level_of, prefetch_rows
from relayc.topi.cpu.reductions.parts import part_by_part, part_sizes
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.exponential_sums import ExponentialSums
from relayc.topi.groups import constant_size, is_static
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.unshifted_softmax import can_be_unshifted, clamp_logarithm, is_logarithm, speculate, stages_of

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_rowwise"]

_BATCHES, _BATCH_SHARE = (2, 4), 24
"""Numbers of short rows that are batched, and the divisor of the L1 size that their results may take: the out-of-order
window covers about a row of 10 vectors with its statistics."""
_SHARE_OF_PAIRS = 8
"""Divisor of the L1 size for two batched rows of a norm of 16-bit elements: their passes convert, and wait for
statistics in longer rows, too."""
_SHARE_OF_L2, _SHARE_OF_PARTS = 4, 16
"""Divisors of the L2 size: the longest softmax row whose exponentials are kept, and the parts of a longer one."""
_SHARE_OF_BLOCKS = 2
"""Divisor of the L2 size: the most bytes of a column block of rows along a strided axis."""
_WIDE_BYTES = 4
"""Bytes of the elements in which statistics are computed."""


@register_schedule(["softmax", "layer_norm", "rms_norm", "l2_normalize", "standardize"], "cpu", rank=Rank.HEAVY)
def schedule_rowwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Compute statistics of a row and the elementwise steps that use them, row by row while it is in L1.

    Along a strided axis this goes by column blocks. Rows that no cache holds have moments, which are found in one pass.
    """
    return schedule_by(_CANDIDATES, RowFacts(outs, anchor, target, tuple(anchor.attrs["axes"])))


def _strided(rows: RowFacts) -> te.Schedule | Refused:
    if rows.are_trailing:
        return Refused("rows are the last dimensions, contiguous in memory")
    if len(rows.axes) > 1:
        return Refused("rows span several dimensions")
    block, room = rows.length * LINE_BYTES, rows.target.cache_bytes.l2 // _SHARE_OF_BLOCKS
    if has_moments(rows) and block > room:
        return Refused(f"a block of a cache line of each row, {block} bytes, exceeds {room} bytes of L2")
    return schedule_strided(rows)


def _transposed(rows: RowFacts) -> te.Schedule | Refused:
    transposed = TransposedRows.of(rows)
    return transposed.schedule() if transposed else transposed


def _row_by_row(rows: RowFacts) -> te.Schedule | Refused:
    if not rows.are_trailing:
        return Refused("rows are not the last dimensions")
    s, out, target, first = rows.create_schedule(), rows.out, rows.target, rows.axes[0]
    lanes = vector_lanes(target)
    clamp_logarithm(s, rows.anchor)
    speculative = can_be_unshifted(rows.anchor) and first > 0  # the sum of a single row has no loop to attach to
    kept = [] if speculative else rows.kept  # a single pass reads the input
    inline_all_but(s, out, [*rows.statistics, *kept])
    together = _rows_per_batch(rows)
    row = loop_over_rows(s, out, rows, together)
    busy = [(out, vectorize_rows(s, out, s[out].op.axis[-1:], target)[0])]
    statistics_at(s, kept, out, row, rows)
    busy += statistics_at(s, rows.statistics, out, row, rows, together)
    if speculative:
        busy.append(_speculate_rows(s, rows.anchor, first, lanes))
    (tensor, loop), length = busy[-1], constant_size(out.shape[first:])
    # the next row, where memory is idle; and this row's results, by a stage that precedes the writing pass
    always = rows.anchor.tag == "softmax" or rows_use_nontemporal_stores(out, constant_size(out.shape[-1:]), target)
    prefetch_rows(s, tensor, loop, constant_size(out.shape), length, target, always=always)
    if tensor is not out and tuple(tensor.shape) == tuple(out.shape) and is_streamed(out, length, target):
        s[tensor].prefetch(out, loop, te.Prefetch())
    note("rows at a time", str(together), kept=len(kept), speculative=speculative, row=length)
    return s


def _speculate_rows(s: te.Schedule, anchor: te.Operation, first: int, lanes: int) -> tuple[te.Tensor, te.IterVar]:
    """Speculate on unshifted exponentials and sums of the softmax `anchor`; returns the busiest stage and its loop."""
    exponentials, sums, _ = speculate(s, anchor, first, keep=not is_logarithm(anchor))
    partial = _vectorize_sums(s, sums, lanes)
    if exponentials is None:
        busy = (*partial, sums)[0]
        return busy, s[busy].op.reduce_axis[-1]
    return exponentials, vectorize_elements(s, exponentials, exponentials.op.axis[-1], exponentials.shape[-1], lanes)


def _vectorize_sums(s: te.Schedule, sums: te.Tensor, lanes: int) -> list[te.Tensor]:
    """Vectorise the sums of rows; returns the stages of partial sums, which are attached unless there is one row."""
    return vectorize_reduction(s, sums, lanes, (sums, s[sums].op.axis[-1]) if s[sums].op.axis else None)


def _rows_per_batch(rows: RowFacts) -> int:
    """Return how many rows are batched stage by stage, so that the latency of lane sums of one overlaps with others.

    Norms of 32-bit elements take one row at a time, since they are memory-bound.
    """
    out, is_softmax = rows.out, rows.anchor.tag == "softmax"
    length, l1 = constant_size(out.shape[rows.axes[0] :]) * out.dtype.nbytes, rows.target.cache_bytes.l1
    waits = is_softmax or out.dtype.nbytes < _WIDE_BYTES
    if rows.axes[0] != 1 or not waits or not is_static(out.shape):
        return 1
    pairs = _BATCH_SHARE if is_softmax else _SHARE_OF_PAIRS
    fitting = [n for n in _BATCHES if n * length <= l1 // (pairs if n == 2 else _BATCH_SHARE)]
    return max([n for n in fitting if constant_size(out.shape[:1]) % n == 0], default=1)


def _in_two_passes(rows: RowFacts) -> te.Schedule | Refused:
    """Softmax: a row's maximum and sum by parts in one pass over memory, then the results from the cache.

    For rows larger than the LLC, whose exponentials are faster recomputed than kept. Where a vector is a cache line, an
    exponential takes less time than the line takes to arrive, so this holds for rows that exceed L1; elsewhere for rows
    that would evict their own exponentials from L2.
    """
    anchor, result, target, first = rows.anchor, rows.result, rows.target, rows.axes[0]
    wide = {result.dtype.nbytes, rows.out.dtype.nbytes} == {_WIDE_BYTES}
    if anchor.tag != "softmax" or not wide or not rows.is_static or not rows.are_last:
        return Refused("no softmax of 32-bit elements along the last dimension, of a static shape")
    if not is_streamed(result, 1, target):
        return Refused("the last-level cache holds all rows")
    whole_lines = vector_lanes(target) * _WIDE_BYTES >= LINE_BYTES
    room = target.cache_bytes.l1 if whole_lines else target.cache_bytes.l2 // _SHARE_OF_L2
    if rows.row_bytes <= room:
        return Refused(f"a cache of {room} bytes keeps the exponentials of {rows.row_bytes}")
    if not rows.has_one_result or rows.kept:
        return Refused("there are several results, or values of a row are kept, not to be computed twice")
    s = rows.create_schedule()
    clamp_logarithm(s, anchor)
    largest, _, total = stages_of(anchor)
    (x,) = largest.op.input_tensors
    room = target.cache_bytes.l2 // _SHARE_OF_PARTS
    parts = ExponentialSums(x, part_sizes(x.shape, x.dtype.nbytes, [first], target, room), "softmax", finite=False)
    s.recompute(largest, parts.largest)
    s.recompute(total, parts.total)
    sums = speculate(s, anchor, first, keep=False)[1] if can_be_unshifted(anchor) else None
    out, passes = s.outputs[0].output(0), (parts.largest_of_part, parts.sum_of_part)
    statistics = rows.of(out, s.current(anchor.output(0)).op).statistics
    inline_all_but(s, out, statistics)
    row = loop_over_rows(s, out, rows)
    vectorize_rows(s, out, s[out].op.axis[-1:], target)
    for op in [op for op in statistics if all(op is not t.op for t in passes)]:
        if tuple(op.output(0).shape) == tuple(out.shape):
            s[op].compute_inline()
        else:
            s[op].compute_at(s[out], row)
    part = part_by_part(s, parts.sums, passes, None, None, target)
    _, of_sum = (vectorize_reduction(s, stage, vector_lanes(target), (parts.sums, part)) for stage in passes)
    of_speculation = [] if sums is None else [*_vectorize_sums(s, sums, vector_lanes(target)), sums]
    busy, length = (*of_speculation, *of_sum, parts.sum_of_part)[0], constant_size([*parts.sizes.values()])
    for tensor in [t for t in inputs_of(busy.op) if constant_size(t.shape) == constant_size(x.shape)]:
        s[busy].prefetch(tensor, s[busy].op.reduce_axis[-1], te.Prefetch(length, level_of(target)))
    return s


_CANDIDATES: tuple[Candidate[RowFacts], ...] = (
    ("image by image", image_by_image),
    ("strided axis", _strided),
    ("moments of parts", by_moments),
    ("flattened rows", flattened_softmax),
    ("transposed rows", _transposed),
    ("two passes", _in_two_passes),
    ("row by row", _row_by_row),
    ("stage by stage", stage_by_stage),
)
