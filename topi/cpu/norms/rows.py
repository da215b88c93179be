"""Softmax and normalisations of rows on CPUs: row statistics and the elementwise steps that use them, in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, note, serves_if
from relayc.topi.candidates import Candidate, schedule_by
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import rows_use_nontemporal_stores, vectorize_rows
from relayc.topi.cpu.norms.flattened_rows import FlattenedSoftmax
from relayc.topi.cpu.norms.moments import exceeds_caches, part_by_part, part_sizes, schedule_by_moments
from relayc.topi.cpu.norms.row_statistics import (
    estimated_work,
    inline_others,
    is_worth_keeping,
    prefetch_next_rows,
    split_at,
    statistics_at,
    uses_reduction,
)
from relayc.topi.cpu.norms.strided_axis import schedule_strided_axis
from relayc.topi.cpu.norms.transposed_rows import TransposedRows
from relayc.topi.cpu.prefetch import LINE_BYTES, inputs_of, is_streamed, level_of
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.stagewise import schedule_stagewise
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.exponential_sums import ExponentialSums
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import layer_norm_by_moments
from relayc.topi.registry import Rank, operations_behind, register_schedule
from relayc.topi.unshifted_softmax import (
    can_be_unshifted,
    clamp_logarithm,
    element_of,
    exponential_of,
    exponentials_of,
    is_logarithm,
    speculate_sums,
    stages_of,
    sums_of,
)

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_rowwise"]

_BATCHES, _BATCH_SHARE = (2, 4), 24
"""Numbers of short rows that are batched, and the divisor of the L1 size that their results may take: the out-of-order
window covers about a row of 10 vectors with its statistics."""
_FEWEST_FLATTENED, _FEWEST_OF_LOGARITHM = 8, 16
"""Shortest rows, in elements, that are faster flattened than transposed in registers; rows of a log-softmax also wait
for the logarithm of their sum."""
_SHARE_OF_PAIRS = 8
"""Divisor of the L1 size for two batched rows of a norm of 16-bit elements: their passes convert, and wait for
statistics in longer rows, too."""
_SHARE_OF_L2, _SHARE_OF_PARTS = 4, 16
"""Divisors of the L2 size: the longest softmax row whose exponentials are kept, and the parts of a longer one."""
_WIDE_BYTES = 4
"""Bytes of the elements in which statistics are computed."""


@register_schedule(["softmax", "layer_norm", "rms_norm", "l2_normalize"], "cpu", rank=Rank.HEAVY)
def schedule_rowwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Compute statistics of a row and the elementwise steps that use them, row by row while it is in L1.

    The anchor's attribute "axis" is the first dimension of a row, which has all dimensions from there on.
    """
    if "axis" not in anchor.attrs:
        return schedule_stagewise(outs, anchor, target)
    return schedule_by(_CANDIDATES, outs, anchor, target)


def _by_moments(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule | Refused:
    first = int(anchor.attrs["axis"])
    if anchor.tag != "layer_norm" or len(outs) > 1:
        return Refused("only a layer norm, of one result, is computed from moments of parts of a row")
    exceed = _rows_exceed_caches(anchor.output(0), first, target)
    return _schedule_by_moments(te.create_schedule([outs[0].op]), anchor, first, target) if exceed else exceed


def _strided(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule | Refused:
    if int(anchor.attrs["axis"]) == len(anchor.axis) - 1:
        return Refused("rows are the last dimension, contiguous in memory")
    if not _reduces_one_axis(anchor):
        return Refused("rows span several dimensions")
    return schedule_strided_axis(te.create_schedule([out.op for out in outs]), outs, anchor, target)


def _flattened(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule | Refused:
    if int(anchor.attrs["axis"]) != len(anchor.axis) - 1:
        return Refused("rows are not the last dimension alone")
    flat = FlattenedSoftmax.of(anchor, outs, target)
    if not flat:
        return flat
    fewest = _FEWEST_OF_LOGARITHM if is_logarithm(anchor) else _FEWEST_FLATTENED
    if flat.line.length < fewest and TransposedRows.of(anchor, outs, target):
        return Refused(f"rows of {flat.line.length} elements, fewer than {fewest}, are faster transposed in registers")
    return flat.schedule()


def _transposed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule | Refused:
    if int(anchor.attrs["axis"]) != len(anchor.axis) - 1:
        return Refused("rows are not the last dimension alone")
    transposed = TransposedRows.of(anchor, outs, target)
    return transposed.schedule() if transposed else transposed


def _kept_stages(
    outs: list[te.Tensor], anchor: te.Operation, target: Target
) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """The stages of the group, and those in front of the anchor that are computed once for a row, and kept."""
    out, first = outs[0], int(anchor.attrs["axis"])
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    row_bytes = constant_size(out.shape[first:]) * max(out.dtype.nbytes, 4)
    in_l1 = all(isinstance(d, int) for d in out.shape[first:]) and row_bytes <= target.cache_bytes.l1 // 4
    before = split_at(stages, anchor)[0]
    return stages, [op for op in before if is_worth_keeping(op, stages, anchor, in_l1=in_l1)]


def _in_two_passes(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule | Refused:
    long = _are_long(outs[0], anchor, target)
    if not long:
        return long
    if len(outs) > 1 or _kept_stages(outs, anchor, target)[1]:
        return Refused("the kernel has several results, or keeps values of a row that two passes would compute twice")
    s = te.create_schedule([outs[0].op])
    clamp_logarithm(s, anchor)
    return _softmax_in_two_passes(s, anchor, int(anchor.attrs["axis"]), target)


def _row_by_row(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    s = te.create_schedule([out.op for out in outs])
    out, lanes, first = outs[0], vector_lanes(target), int(anchor.attrs["axis"])
    stages, kept = _kept_stages(outs, anchor, target)
    before, behind = split_at(stages, anchor)
    clamp_logarithm(s, anchor)
    speculative = can_be_unshifted(anchor) and first > 0  # the sum of a single row has no loop to attach to
    if speculative:  # a single pass reads the input
        kept = []
    for op in stages:
        if op is not out.op and op not in kept and (op in behind or not uses_reduction(op)):
            s[op].compute_inline()
    axes = list(s[out].op.axis)
    row, together = s[out].fuse(*axes[:first]), _rows_per_batch(out, anchor, first, target)
    if together > 1:
        row, _ = s[out].split(row, factor=together)
    parallel(s, out, row, constant_size(out.shape) * element_cost(stages), lanes)
    busy = [(out, vectorize_rows(s, out, s[out].op.axis[-1:], target)[0])]
    for op in kept:
        s[op].compute_at(s[out], row)
        vectorize_elements(s, op.output(0), op.axis[-1], op.axis[-1].extent, lanes)
    busy += statistics_at(s, before, out, row, first, lanes, together)
    if speculative:
        busy.append(_speculate_rows(s, anchor, first, lanes))
    length = constant_size([extent_of(a) for a in axes[first:]])
    always = anchor.tag == "softmax" or rows_use_nontemporal_stores(out, constant_size(out.shape[-1:]), target)
    prefetch_next_rows(s, out, busy[-1], length, target, always=always)
    note("rows at a time", str(together), kept=len(kept), speculative=speculative, row=length)
    return s


_CANDIDATES: tuple[Candidate, ...] = (
    ("moments of parts", _by_moments),
    ("strided axis", _strided),
    ("flattened rows", _flattened),
    ("transposed rows", _transposed),
    ("two passes", _in_two_passes),
    ("row by row", _row_by_row),
)


def _speculate_rows(s: te.Schedule, anchor: te.Operation, first: int, lanes: int) -> tuple[te.Tensor, te.IterVar]:
    """Speculate on unshifted exponentials and sums of the softmax `anchor`; returns the busiest stage and its loop."""
    largest, exact, total = stages_of(anchor)
    element = element_of(largest.op, first)
    if is_logarithm(anchor):
        sums = sums_of(lambda *i: exponential_of(element(*i)), exact, total)
        speculate_sums(s, anchor, None, sums)
        busy = (*_vectorize_sums(s, sums, lanes), sums)[0]
        return busy, s[busy].op.reduce_axis[-1]
    exponentials = exponentials_of(element, exact)
    sums = sums_of(exponentials, exact, total)
    speculate_sums(s, anchor, exponentials, sums)
    _vectorize_sums(s, sums, lanes)
    return exponentials, vectorize_elements(s, exponentials, exponentials.op.axis[-1], exponentials.shape[-1], lanes)


def _vectorize_sums(s: te.Schedule, sums: te.Tensor, lanes: int) -> list[te.Tensor]:
    """Vectorise the sums of rows; returns the stages of partial sums, which are attached unless there is one row."""
    stages = vectorize_reduction(s, sums, lanes)
    for stage in stages if s[sums].op.axis else ():
        s[stage].compute_at(s[sums], s[sums].op.axis[-1])
    return stages


def _rows_per_batch(out: te.Tensor, anchor: te.Operation, first: int, target: Target) -> int:
    """Return how many rows are batched stage by stage, so that the latency of lane sums of one overlaps with others.

    Norms of 32-bit elements take one row at a time, since they are memory-bound.
    """
    rows, length = out.shape[0], constant_size(out.shape[first:]) * out.dtype.nbytes
    waits = anchor.tag == "softmax" or out.dtype.nbytes < _WIDE_BYTES
    if first != 1 or not waits or not all(isinstance(d, int) for d in out.shape):
        return 1
    pairs = _BATCH_SHARE if anchor.tag == "softmax" else _SHARE_OF_PAIRS
    fitting = [n for n in _BATCHES if n * length <= target.cache_bytes.l1 // (pairs if n == 2 else _BATCH_SHARE)]
    return max([n for n in fitting if constant_size([rows]) % n == 0], default=1)


def _rows_exceed_caches(rows: te.Tensor, first: int, target: Target) -> Serves | Refused:
    if not all(isinstance(d, int) for d in rows.shape):
        return Refused("the shape is dynamic")
    length = constant_size(rows.shape[first:]) * rows.dtype.nbytes
    exceed = exceeds_caches(length, constant_size(rows.shape[:first]), target)
    return serves_if(exceed, f"caches hold a row of {length} bytes for a second pass, and all cores have rows")


def _schedule_by_moments(s: te.Schedule, anchor: te.Operation, first: int, target: Target) -> te.Schedule:
    x, *parameters = [t for t in anchor.input_tensors if not uses_reduction(t.op)]
    beta = parameters[-1] if anchor.attrs["shifted"] else None  # one tensor may serve as both
    moments = Moments(x, part_sizes(x.shape, x.dtype.nbytes, range(first, x.ndim), target), "layer_norm")
    norm = layer_norm_by_moments(moments, parameters[0], beta, first, anchor.attrs["epsilon"])
    return schedule_by_moments(s, anchor.output(0), norm, moments, first, target)


def _are_long(out: te.Tensor, anchor: te.Operation, target: Target) -> Serves | Refused:
    """True for a softmax of long rows, larger than the LLC, whose exponentials are faster recomputed than kept.

    Where a vector is a cache line, an exponential takes less time than the line takes to arrive, so this holds for rows
    that exceed L1; elsewhere for rows that would evict their own exponentials from L2.
    """
    result = anchor.output(0)
    known = all(isinstance(d, int) for d in result.shape) and anchor.attrs["axis"] == len(result.shape) - 1
    if anchor.tag != "softmax" or {result.dtype.nbytes, out.dtype.nbytes} != {_WIDE_BYTES} or not known:
        return Refused("no softmax of 32-bit elements along the last dimension, of a static shape")
    if not is_streamed(result, 1, target):
        return Refused("the last-level cache holds all rows")
    whole_lines = vector_lanes(target) * _WIDE_BYTES >= LINE_BYTES
    room = target.cache_bytes.l1 if whole_lines else target.cache_bytes.l2 // _SHARE_OF_L2
    row = constant_size(result.shape[-1:]) * _WIDE_BYTES
    return serves_if(row > room, f"a cache of {room} bytes keeps the exponentials of a row of {row} bytes")


def _softmax_in_two_passes(s: te.Schedule, anchor: te.Operation, first: int, target: Target) -> te.Schedule:
    """Compute a row's maximum and sum by parts in one pass over memory, then the results from the cache."""
    largest, exact, total = stages_of(anchor)
    element = element_of(largest.op, first)
    (x,) = largest.op.input_tensors
    room = target.cache_bytes.l2 // _SHARE_OF_PARTS
    parts = ExponentialSums(x, part_sizes(x.shape, x.dtype.nbytes, [first], target, room), "softmax", finite=False)
    s.recompute(largest, parts.largest)
    s.recompute(total, parts.total)
    sums = sums_of(lambda *i: exponential_of(element(*i)), exact, total) if can_be_unshifted(anchor) else None
    if sums is not None:
        speculate_sums(s, anchor, None, sums)
    out, passes = s.outputs[0].output(0), (parts.largest_of_part, parts.sum_of_part)
    before = inline_others(s, out, s.current(anchor.output(0)).op)
    row = s[out].fuse(*s[out].op.axis[:first])
    parallel(s, out, row, estimated_work(out), vector_lanes(target))
    vectorize_rows(s, out, s[out].op.axis[-1:], target)
    for op in [op for op in before if uses_reduction(op) and all(op is not t.op for t in passes)]:
        if tuple(op.output(0).shape) == tuple(out.shape):
            s[op].compute_inline()
        else:
            s[op].compute_at(s[out], row)
    part = part_by_part(s, parts.sums, passes, None, None, target)
    of_largest, of_sum = (vectorize_reduction(s, stage, vector_lanes(target)) for stage in passes)
    for partial in (*of_largest, *of_sum):
        s[partial].compute_at(s[parts.sums], part)
    of_speculation = [] if sums is None else [*_vectorize_sums(s, sums, vector_lanes(target)), sums]
    busy, length = (*of_speculation, *of_sum, parts.sum_of_part)[0], constant_size([*parts.sizes.values()])
    for tensor in [t for t in inputs_of(busy.op) if constant_size(t.shape) == constant_size(x.shape)]:
        s[busy].prefetch(tensor, s[busy].op.reduce_axis[-1], te.Prefetch(length, level_of(target)))
    return s


def _reduces_one_axis(anchor: te.Operation) -> bool:
    """True if every statistic that `anchor` uses reduces a single dimension."""
    behind = [op for op in operations_behind([anchor.output(0)]) if isinstance(op, te.ComputeOp)]
    return all(len(op.reduce_axis) <= 1 for op in behind)
