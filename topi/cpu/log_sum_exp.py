"""Logarithms of sums of exponentials on CPUs: two passes over what a cache holds, in parts where that can't be all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.moments import part_sizes
from topi.cpu.reduction import pass_across, pass_along, schedule_across, schedule_along
from topi.cpu.row_statistics import uses_reduction
from topi.cpu.stagewise import schedule_stagewise
from topi.exponential_sums import ExponentialSums
from topi.groups import constant_size, inline_injective
from topi.registry import Rank, register_schedule
from topi.tag import LOG_SUM_EXP
from topi.utils import same_dim

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_log_sum_exp"]

_SHARE_OF_L2 = 4
"""Which part of the second-level cache a row takes at most, whose next one is asked for in the second pass over it."""
_LINES = 32
"""Lines across memory that are read at once, both passes over a cache line of each: more are taken in parts."""


@register_schedule(LOG_SUM_EXP, "cpu", rank=Rank.REDUCTION)
def schedule_log_sum_exp(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """With an elementwise tail: one pass for the largest, one for the sum, while a cache has what they read."""
    if len(outs) > 1:
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([outs[0].op])
    inline_injective(s, outs, keep=[anchor])
    x = next(t for t in anchor.input_tensors if not uses_reduction(t.op))
    largest = next(t for t in anchor.input_tensors if uses_reduction(t.op))
    axes, total = anchor.attrs["axes"], anchor.output(0)
    along = x.ndim - 1 in axes
    pass_over, combine = (pass_along, schedule_along) if along else (pass_across, schedule_across)
    sizes = part_sizes(x.shape, x.dtype.nbytes, axes, target, target.cache_bytes.l2 // _SHARE_OF_L2, _LINES)
    length = max(constant_size([sizes[a] for a in axes]), 1)
    if all(same_dim(sizes[a], x.shape[a]) for a in axes):
        pass_over(s, s.outputs[0].output(0), (largest, total), length, target)
        return s
    parts = ExponentialSums(x, sizes, "log_sum_exp", keepdims=anchor.attrs["keepdims"])
    s.recompute(largest, parts.largest)
    s.recompute(total, parts.total)
    pass_over(s, parts.sums, (parts.largest_of_part, parts.sum_of_part), length, target)
    combine(s, s.current(parts.largest), s.current(parts.largest), target)
    combine(s, s.outputs[0].output(0), s.current(parts.total), target)
    return s
