"""Normalisations by moments on CPUs: one pass over memory for means and variances by parts, one that normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, serves_if
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.elementwise.line_stores import vectorize_rows
from relayc.topi.cpu.norms.facts import RowFacts, inline_others, loop_over_rows
from relayc.topi.cpu.prefetch import prefetch_next
from relayc.topi.cpu.reductions.lines import add_up_lines
from relayc.topi.cpu.reductions.parts import part_sizes, schedule_parts
from relayc.topi.cpu.reductions.reduction import reduce_across
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, uses_reduction
from relayc.topi.moments import Moments
from relayc.topi.nn.norm import layer_norm_by_moments, standardize_by_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target

__all__ = ["Stored", "by_moments", "has_moments", "moments_of", "schedule_by_moments", "store_rows"]

Stored = tuple[te.IterVar | None, te.IterVar, int]
"""The loop over rows that are normalised while a cache holds them, or None; the loop over vectors of results, and the
elements that it stores per iteration."""


def has_moments(rows: RowFacts) -> Serves | Refused:
    """Whether this is a norm by means and variances, which may be found as moments."""
    attrs = rows.anchor.attrs
    centred = rows.anchor.tag == "layer_norm" or attrs.get("centred", False)
    return serves_if(rows.is_static and rows.has_one_result and centred, "a dynamic shape, several results, or no mean")


def by_moments(rows: RowFacts) -> te.Schedule | Refused:
    """A candidate: the moments of parts of rows, where no cache holds a row or rows are not contiguous."""
    serves = has_moments(rows)
    if not serves:
        return serves
    if rows.are_trailing and not rows.exceed_caches:
        return Refused(f"caches hold a row of {rows.row_bytes} bytes for a second pass, and all cores have rows")
    anchor, attrs = rows.anchor, rows.anchor.attrs
    if anchor.tag == "layer_norm":
        x, *parameters = [t for t in anchor.input_tensors if not uses_reduction(t.op)]
        beta = parameters[-1] if attrs["shifted"] else None  # one tensor may serve as both
        moments = moments_of(x, rows.axes, rows.target, "layer_norm")
        norm = layer_norm_by_moments(moments, parameters[0], beta, rows.axes[0], attrs["epsilon"])
    else:
        moments = moments_of(rows.elements, rows.axes, rows.target, "standardize")
        norm = standardize_by_moments(moments, attrs["epsilon"], attrs["margin"])
    by_rows = rows.are_along and not rows.exceed_caches and bool(rows.others)
    return schedule_by_moments(rows, moments, norm, lambda s, out: store_rows(s, out, rows, by_rows))


def moments_of(x: te.Tensor, axes: Sequence[int], target: Target, name: str) -> Moments:
    """The moments of `x` over dimensions, by parts that fit a cache."""
    return Moments(x, part_sizes(x.shape, x.dtype.nbytes, axes, target), name)


def store_rows(s: te.Schedule, out: te.Tensor, rows: RowFacts, by_rows: bool) -> Stored:
    """Results in the order of memory: `by_rows`, or with the dimensions behind those of rows fused into one, so that
    non-temporal stores begin with whole cache lines."""
    axes, first = list(s[out].op.axis), max(rows.others, default=-1) + 1
    if by_rows:
        row = loop_over_rows(s, out, rows)
        return row, *vectorize_rows(s, out, axes[first:], rows.target)
    outer = axes[: first if rows.are_along else -1]
    vectors, each = vectorize_rows(s, out, axes[len(outer) :], rows.target)
    parallel_outer(s, out, [*outer, vectors], rows.work, rows.target)
    return None, vectors, each


def schedule_by_moments(
    rows: RowFacts, moments: Moments, norm: te.Tensor, store: Callable[[te.Schedule, te.Tensor], Stored],
    result: te.Tensor | None = None,
) -> te.Schedule:  # fmt: skip
    """Compute a normalisation as `norm`: one pass for its `moments`, and one that normalises, which `store` schedules.

    `result`: the normalisation in the shape of the anchor, where that is another than of `norm`.
    """
    s, target = rows.create_schedule(), rows.target
    s.recompute(rows.result, norm if result is None else result)
    out = s.outputs[0].output(0)
    statistics = inline_others(s, out, s.current(norm).op)
    row, vectors, each = store(s, out)
    length = constant_size(moments.x.shape[min(moments.sizes) :])
    prefetched = row is not None and result is not None and prefetch_next(s, out, vectors, length, each, target)
    _schedule_moments(s, statistics, moments, target, None if row is None else (out, row), prefetched=prefetched)
    return s


def _schedule_moments(
    s: te.Schedule, statistics: Sequence[te.ComputeOp], moments: Moments, target: Target,
    at: tuple[te.Tensor, te.IterVar] | None, *, prefetched: bool,
) -> None:  # fmt: skip
    """Compute `moments`, and the `statistics` that use them, before the normalisation or at its loop `at`.

    `prefetched`: their input was prefetched a row ahead.
    """
    lanes, along = vector_lanes(target), moments.x.ndim - 1 in moments.sizes
    schedule_parts(s, moments, target, at, prefetched)
    for op in [op for op in statistics if s[op].attach == "root"]:
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
