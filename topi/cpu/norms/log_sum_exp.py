"""Log-sum-exp on CPUs: two passes over each row in a cache, or over parts of it where no cache holds a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, first_of
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import element_cost
from relayc.topi.cpu.norms.facts import uses_reduction
from relayc.topi.cpu.norms.flattened_rows import FlattenedRows
from relayc.topi.cpu.norms.moments import part_sizes
from relayc.topi.cpu.reductions.reduction import pass_across, pass_along, schedule_across, schedule_along
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.exponential_sums import ExponentialSums
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.reduction import distance_below, largest_number
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.tag import ELEMWISE, LOG_SUM_EXP
from relayc.topi.unshifted_softmax import exponential_of, is_valid_sum, no_largest, sums_like, sums_of
from relayc.topi.utils import same_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_log_sum_exp"]

_SHARE_OF_L2 = 4
"""Divisor of the L2 size: the longest row whose successor is prefetched during the second pass over it."""
_FEWEST_FLAT, _MOST_FLAT = 12, 320
"""Row lengths, in elements, for flattened rows: shorter rows are transposed in registers, longer ones go one by one."""
_LINES = 32
"""Lines of a reduction along a strided axis whose cache lines both passes go over at once; more are split in parts."""


@register_schedule(LOG_SUM_EXP, "cpu", rank=Rank.REDUCTION)
def schedule_log_sum_exp(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule log-sum-exp with an elementwise tail: a pass for the maximum, then one for the sum, from the cache."""
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _largest_and_sum(kernel: KernelFacts) -> te.Schedule | Refused:
    s, outs, anchor, target = kernel.create_schedule(), kernel.outs, kernel.anchor, kernel.target
    if not kernel.has_one_result:
        return Refused("there are several results")
    inline_injective(s, outs, keep=[anchor])
    x = next(t for t in anchor.input_tensors if not uses_reduction(t.op))
    largest = next(t for t in anchor.input_tensors if uses_reduction(t.op))
    axes, total = anchor.attrs["axes"], anchor.output(0)
    along = x.ndim - 1 in axes
    pass_over, combine = (pass_along, schedule_along) if along else (pass_across, schedule_across)
    sizes = part_sizes(x.shape, x.dtype.nbytes, axes, target, target.cache_bytes.l2 // _SHARE_OF_L2, _LINES)
    length = max(constant_size([sizes[a] for a in axes]), 1)

    def flattened() -> Serves | Refused:
        if axes != (x.ndim - 1,) or total.dtype != "float32" or anchor is outs[0].op:
            return Refused("sums are not float32, of the last dimension, with an elementwise tail")
        line = FlattenedRows.of(x.shape, target, _MOST_FLAT)
        if line and line.length < _FEWEST_FLAT:
            return Refused(f"rows of {line.length} elements are shorter than {_FEWEST_FLAT}")
        if line:
            _sum_flattened(s, x, largest, total, line)
        return True if line else line

    def two_passes() -> Serves | Refused:
        if not all(same_dim(sizes[a], x.shape[a]) for a in axes):
            return Refused("no share of L2 holds what is reduced to one result")
        passes, out = (largest, total), s.outputs[0].output(0)
        pass_over(s, out, passes, length, target, _speculate(s, out, passes))
        return True

    def parts_of_rows() -> Serves:
        parts = ExponentialSums(x, sizes, "log_sum_exp", keepdims=anchor.attrs["keepdims"])
        s.recompute(largest, parts.largest)
        s.recompute(total, parts.total)
        passes = (parts.largest_of_part, parts.sum_of_part)
        pass_over(s, parts.sums, passes, length, target, _speculate(s, parts.sums, passes))
        combine(s, s.current(parts.largest), s.current(parts.largest), target)
        combine(s, s.outputs[0].output(0), s.current(parts.total), target)
        return True

    first_of("log-sum-exp", (
        ("flattened rows", flattened), ("two passes", two_passes), ("parts of rows", parts_of_rows)
    ))  # fmt: skip
    return s


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("maximum, then sum", _largest_and_sum),
    ("stage by stage", stage_by_stage),
)


def _speculate(s: te.Schedule, out: te.Tensor, passes: Sequence[te.Tensor]) -> te.Tensor | None:
    """Speculate that `out` can be computed from unshifted sums, without row maxima; returns those sums.

    None where `out` is one of the passes, or a scalar.
    """
    largest, total = passes
    if not s[total].op.axis or any(s[t].op is s[out].op for t in passes):
        return None
    sums = sums_like(largest, total)
    s.speculate(passes, [no_largest(largest, "log_sum_exp_zero"), sums], is_valid_sum)
    return sums


def _sum_flattened(s: te.Schedule, x: te.Tensor, largest: te.Tensor, total: te.Tensor, line: FlattenedRows) -> None:
    """Sum flattened short rows with unshifted exponentials, and fall back to shifted ones where those fail."""
    element = lambda *i: te.cast(total.dtype, x(*i))  # noqa: E731
    maxima, lanes_of_maxima = line.by_lanes(element, largest_number, largest.op.name)
    exponential = lambda *i: te.exp_nonpositive(distance_below(element(*i), maxima(*i[:-1])))  # noqa: E731
    sums, lanes_of_sums = line.by_lanes(exponential, te.sum, total.op.name)
    for old, new in ((largest, maxima), (total, sums)):  # they keep a dimension of 1 with keepdims
        s.recompute(old, te.compute(old.shape, lambda *i, t=new: t(*i[: x.ndim - 1]), name=old.op.name, tag=ELEMWISE))
        s[s.current(old)].compute_inline()
    exponentials = te.compute(x.shape, lambda *i: exponential_of(element(*i)), name="log_sum_exp_exponential")
    unshifted = sums_of(exponentials, exponentials, maxima)
    zero = no_largest(maxima, "log_sum_exp_zero")
    s.speculate([maxima, sums], [zero, unshifted], is_valid_sum)
    out = s.outputs[0].output(0)
    row, rest = s[out].op.axis[x.ndim - 2], s[out].op.axis[x.ndim - 1 :]
    group, lane = s[out].split(row, factor=line.lanes, tail="shift")
    s[out].reorder(group, *rest, lane)
    s[out].vectorize(lane)
    work = constant_size(x.shape) * element_cost([exponentials.op])
    group = parallel_outer(s, out, [*s[out].op.axis[: x.ndim - 2], group], work, line.target)[-1]
    for tensor in (maxima, sums):
        s[tensor].set_scope("local")
        s[tensor].compute_at(s[out], group)
    s[zero].vectorize(zero.op.axis[-1])
    line.schedule_exponentials(s, exponentials, along="memory_strides" not in x.op.attrs)
    s[exponentials].set_scope("local")
    s[exponentials].compute_at(s[unshifted], line.add_up(s, unshifted))
    line.vectorize_fallback(s, (maxima, lanes_of_maxima), (sums, lanes_of_sums))
