"""Variances and log-sum-exp on CPUs: two passes over each row in a cache, or over parts of rows that none holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, first_of, note
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.common import attach, parallel_outer
from relayc.topi.cpu.elements import element_cost
from relayc.topi.cpu.reductions.flattened_rows import FlattenedRows
from relayc.topi.cpu.reductions.parts import part_sizes, schedule_parts
from relayc.topi.cpu.reductions.reduction import reduce_across, reduce_along
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.exponential_sums import ExponentialSums
from relayc.topi.groups import constant_size, has_gaps, inline_injective, uses_reduction
from relayc.topi.moments import Moments
from relayc.topi.reduction import distance_below, largest_number
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.tag import ELEMWISE, LOG_SUM_EXP, VARIANCE
from relayc.topi.unshifted_softmax import exponential_of, is_valid_sum, no_largest, sums_like, sums_of
from relayc.topi.utils import num_elements, same_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import Dim

__all__ = ["TwoPassFacts", "schedule_two_passes"]

_VARIANCE_ALONG, _VARIANCE_ACROSS = 4, 2
"""Divisors of the L2 size, along memory and along a strided axis: the most that both passes of a variance go over."""
_SHARE_OF_L2 = 4
"""Divisor of the L2 size: the longest row whose successor is prefetched during the second pass of a log-sum-exp."""
_FEWEST_FLAT, _MOST_FLAT = 12, 320
"""Row lengths, in elements, for flattened rows: shorter rows are transposed in registers, longer ones go one by one."""
_LINES = 32
"""Lines of a log-sum-exp along a strided axis whose cache lines both passes go over at once; more are split in parts.
"""


@dataclass(frozen=True, eq=False)
class TwoPassFacts(KernelFacts):
    """A reduction along `axes` of `x` in two passes: the second one needs the result of the first, of the same rows."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that are reduced."""
        return self.anchor.attrs["axes"]

    @cached_property
    def x(self) -> te.Tensor:
        """The tensor that is reduced."""
        return next(t for t in self.anchor.input_tensors if not uses_reduction(t.op))

    @cached_property
    def first(self) -> te.Tensor:
        """The result of the first pass, where the anchor reads it."""
        return next(t for t in self.anchor.input_tensors if uses_reduction(t.op))

    @property
    def along(self) -> bool:
        """Whether rows are contiguous in memory."""
        return self.x.ndim - 1 in self.axes

    def parts(self, room: int | None = None, lines: int | None = None) -> dict[int, Dim]:
        """The extents of a part of a row: see `part_sizes`."""
        return part_sizes(self.x.shape, self.x.dtype.nbytes, self.axes, self.target, room, lines)

    def are_whole(self, sizes: Mapping[int, Dim]) -> bool:
        """Whether parts of these sizes are whole rows."""
        return all(same_dim(sizes[a], self.x.shape[a]) for a in self.axes)

    def create_schedule(self) -> te.Schedule:
        """A schedule in which all elementwise stages are inlined."""
        s = super().create_schedule()
        inline_injective(s, self.outs, keep=[self.anchor])
        return s

    def reduce(
        self, s: te.Schedule, out: te.Tensor, *passes: te.Tensor, speculation: te.Tensor | None = None
    ) -> None:
        """Schedule passes over rows, which `out` is computed from."""
        (reduce_along if self.along else reduce_across)(s, out, passes, self.target, speculation)


@register_schedule([VARIANCE, LOG_SUM_EXP], "cpu", rank=Rank.REDUCTION)
def schedule_two_passes(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule a variance or log-sum-exp with an elementwise tail: two passes over rows in a cache.

    The first finds the mean or the maximum. Where no cache holds rows, both passes go over parts of them.
    """
    return schedule_by(_CANDIDATES, TwoPassFacts(outs, anchor, target))


def _over_rows(kernel: TwoPassFacts) -> te.Schedule | Refused:
    if not kernel.has_one_result:
        return Refused("there are several results")
    return _mean_and_variance(kernel) if kernel.anchor.tag == VARIANCE else _largest_and_sum(kernel)


_CANDIDATES: tuple[Candidate[TwoPassFacts], ...] = (("two passes", _over_rows), ("stage by stage", stage_by_stage))


def _mean_and_variance(kernel: TwoPassFacts) -> te.Schedule:
    s, x, anchor, axes = kernel.create_schedule(), kernel.x, kernel.anchor, kernel.axes
    fitting = kernel.parts(kernel.target.cache_bytes.l2 // (_VARIANCE_ALONG if kernel.along else _VARIANCE_ACROSS))
    fits = kernel.are_whole(fitting)
    note("variance", "two passes" if fits else "moments of parts", part=", ".join(map(str, fitting.values())))
    if fits:
        kernel.reduce(s, s.outputs[0].output(0), kernel.first, kernel.result)
        return s
    moments = Moments(x, kernel.parts(), "variance", keepdims=anchor.attrs["keepdims"])
    count = te.cast(moments.wide, num_elements([x.shape[a] for a in axes]))
    sums = moments.sum()
    squares = moments.squared_distances(lambda *i: sums(*i) / count)
    s.recompute(kernel.result, squares)
    schedule_parts(s, moments, kernel.target)
    out, result = s.outputs[0].output(0), s.current(kernel.result)
    kernel.reduce(s, s.current(sums), s.current(sums))
    kernel.reduce(s, out, result)
    return s


def _largest_and_sum(kernel: TwoPassFacts) -> te.Schedule:
    s, x, anchor, target = kernel.create_schedule(), kernel.x, kernel.anchor, kernel.target
    largest, total = kernel.first, kernel.result
    sizes = kernel.parts(target.cache_bytes.l2 // _SHARE_OF_L2, _LINES)

    def flattened() -> Serves | Refused:
        if kernel.axes != (x.ndim - 1,) or total.dtype != "float32" or anchor is kernel.out.op:
            return Refused("sums are not float32, of the last dimension, with an elementwise tail")
        line = FlattenedRows.of(x.shape, target, _MOST_FLAT)
        if line and line.length < _FEWEST_FLAT:
            return Refused(f"rows of {line.length} elements are shorter than {_FEWEST_FLAT}")
        if line:
            _sum_flattened(s, x, largest, total, line)
        return True if line else line

    def two_passes() -> Serves | Refused:
        if not kernel.are_whole(sizes):
            return Refused("no share of L2 holds what is reduced to one result")
        passes, out = (largest, total), s.outputs[0].output(0)
        kernel.reduce(s, out, *passes, speculation=_speculate(s, out, passes))
        return True

    def parts_of_rows() -> Serves:
        parts = ExponentialSums(x, sizes, "log_sum_exp", keepdims=anchor.attrs["keepdims"])
        s.recompute(largest, parts.largest)
        s.recompute(total, parts.total)
        passes = (parts.largest_of_part, parts.sum_of_part)
        kernel.reduce(s, parts.sums, *passes, speculation=_speculate(s, parts.sums, passes))
        kernel.reduce(s, s.current(parts.largest), s.current(parts.largest))
        kernel.reduce(s, s.outputs[0].output(0), s.current(parts.total))
        return True

    first_of("log-sum-exp", (
        ("flattened rows", flattened), ("two passes", two_passes), ("parts of rows", parts_of_rows)
    ))  # fmt: skip
    return s


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
        attach(s, tensor, out, group)
    s[zero].vectorize(zero.op.axis[-1])
    fallback = (maxima, lanes_of_maxima), (sums, lanes_of_sums)
    line.apply(s, exponentials, unshifted, *fallback, along=not has_gaps(x), only_summed=True)
