"""Normalisations by moments on CPUs: one pass over memory for means and variances by parts, one that normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import RowFacts, inline_others, loop_over_rows
from relayc.topi.cpu.reductions.lines import add_up_lines
from relayc.topi.cpu.reductions.parts import part_sizes, schedule_parts
from relayc.topi.cpu.reductions.reduction import reduce_across
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import extent_of, uses_reduction
from relayc.topi.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["moments_of", "schedule_by_moments", "schedule_moments"]


def moments_of(x: te.Tensor, axes: Sequence[int], target: Target, name: str) -> Moments:
    """The moments of `x` over dimensions, by parts that fit a cache."""
    return Moments(x, part_sizes(x.shape, x.dtype.nbytes, axes, target), name)


def schedule_by_moments(rows: RowFacts, moments: Moments, norm: te.Tensor, *, by_rows: bool = False) -> te.Schedule:
    """Compute a normalisation as `norm`: one pass for its `moments`, one that normalises.

    `by_rows`: each row is normalised while a cache holds it. Otherwise the dimensions behind those of rows are fused
    into one, so that non-temporal stores begin with whole cache lines.
    """
    s, target = rows.create_schedule(), rows.target
    s.recompute(rows.result, norm)
    out = s.outputs[0].output(0)
    before, axes = inline_others(s, out, s.current(rows.result).op), list(s[out].op.axis)
    first = max(rows.others, default=-1) + 1
    if not by_rows:
        schedule_moments(s, before, moments, target)
        outer = axes[: first if rows.are_along else -1]
        vectors, _ = vectorize_rows(s, out, axes[len(outer) :], target)
        parallel_outer(s, out, [*outer, vectors], rows.work, target)
        return s
    row = loop_over_rows(s, out, rows)
    if rows.are_along:
        vectorize_rows(s, out, axes[first:], target)
    else:
        vectorize_elements(s, out, axes[-1], extent_of(axes[-1]), vector_lanes(target))
    schedule_moments(s, before, moments, target, (out, row))
    return s


def schedule_moments(
    s: te.Schedule, before: Sequence[te.ComputeOp], moments: Moments, target: Target,
    at: tuple[te.Tensor, te.IterVar] | None = None, *, prefetched: bool = False,
) -> None:  # fmt: skip
    """Compute `moments`, and the stages of `before` that use them, before the normalisation or at its loop `at`.

    `prefetched`: their input was prefetched a row ahead.
    """
    lanes, along = vector_lanes(target), moments.x.ndim - 1 in moments.sizes
    schedule_parts(s, moments, target, at, prefetched)
    for op in [op for op in before if s[op].attach == "root" and uses_reduction(op)]:
        statistic, along_memory = op.output(0), op.attrs.get("reduces_last_axis", False)
        if at is not None:
            s[statistic].compute_at(s[at[0]], at[1])
        if op.num_outputs > 1 or not op.axis or along_memory or (along and at is not None):
            continue
        if not op.reduce_axis:
            vectorize_elements(s, statistic, op.axis[-1], extent_of(op.axis[-1]), lanes)
        elif at is not None:
            add_up_lines(s, statistic, lanes)
        else:
            reduce_across(s, statistic, [statistic], target)
