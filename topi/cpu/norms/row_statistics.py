"""Helpers for kernels that compute statistics of rows and go over the rows again with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.norms.facts import split_at, uses_reduction
from relayc.topi.cpu.prefetch import is_streamed, prefetch_rows
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["estimated_work", "inline_others", "prefetch_next_rows", "statistics_at"]

def prefetch_next_rows(
    s: te.Schedule, out: te.Tensor, busy: tuple[te.Tensor, te.IterVar], length: int, target: Target, *, always: bool
) -> None:
    """Prefetch the next row of large inputs, and this row's results for writing, while a row is computed.

    This goes a cache line at a time in `busy`, the stage and loop with most arithmetic, where memory is idle. Results
    are prefetched only by a stage that precedes the writing pass. `always`: on cores with few line-fill buffers, too.
    """
    tensor, loop = busy
    prefetch_rows(s, tensor, loop, constant_size(out.shape), length, target, always=always)
    if tensor is not out and tuple(tensor.shape) == tuple(out.shape) and is_streamed(out, length, target):
        s[tensor].prefetch(out, loop, te.Prefetch())


def statistics_at(
    s: te.Schedule,
    before: list[te.ComputeOp],
    out: te.Tensor,
    row: te.IterVar,
    first: int,
    lanes: int,
    together: int = 1,
) -> list[tuple[te.Tensor, te.IterVar]]:
    """Compute the stages that depend on reductions at the loop `row` of `out`; rows have `first` indices.

    `together`: rows per iteration. Returns the stages that hold whole rows, with their loops over vectors.
    """
    rows: list[tuple[te.Tensor, te.IterVar]] = []
    for op in before:
        if not uses_reduction(op):
            continue
        result = op.output(0)
        s[result].compute_at(s[out], row)
        if op.reduce_axis:
            at = (result, s[result].op.axis[0]) if together > 1 else (out, row)
            vectorize_reduction(s, result, lanes, at)
        elif len(op.axis) > first:
            loop = vectorize_elements(s, result, s[result].op.axis[-1], op.axis[-1].extent, lanes)
            rows.append((result, loop))
    return rows


def inline_others(s: te.Schedule, out: te.Tensor, anchor: te.Operation) -> list[te.ComputeOp]:
    """Inline the stages behind the anchor and those in front of its statistics; returns the stages before it."""
    stages = [op for op in operations_behind([out]) if isinstance(op, te.ComputeOp)]
    before, behind = split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not uses_reduction(op)):
            s[op].compute_inline()
    return before


def estimated_work(out: te.Tensor) -> float:
    """Estimate the scalar operations of a kernel whose stages all have the shape of `out`."""
    return constant_size(out.shape) * element_cost(operations_behind([out]))
