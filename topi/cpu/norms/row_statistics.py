"""Kernels that find out something about rows and go over them again: statistics, and what uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Binary, Call, Select
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.prefetch import is_streamed, prefetch_rows
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = [
    "elements_of", "inline_others", "is_worth_keeping", "prefetch_next_rows", "split_at", "statistics_at",
    "uses_reduction", "work_behind",
]  # fmt: skip

_CALL_COST = 16
"""Operations that a transcendental function is counted as."""


def elements_of(anchor: te.Operation) -> te.Tensor:
    """What a norm is of."""
    return next(t for t in anchor.input_tensors if tuple(t.shape) == tuple(anchor.output(0).shape))


def prefetch_next_rows(
    s: te.Schedule, out: te.Tensor, busy: tuple[te.Tensor, te.IterVar], length: int, target: Target, *, always: bool
) -> None:
    """Ask for the next row of large inputs, and for the place of this row's results, while a row is worked on.

    A line at a time in the loop of most arithmetic, `busy`: memory is idle meanwhile. What takes a pass of its own
    before the results are written can ask for their place too. `always`: cores that wait for few lines do so, too.
    """
    tensor, loop = busy
    prefetch_rows(s, tensor, loop, constant_size(out.shape), length, target, always=always)
    if tensor is not out and tuple(tensor.shape) == tuple(out.shape) and is_streamed(out, length, target):
        s[tensor].prefetch_ahead(out, loop, 0)


def statistics_at(
    s: te.Schedule,
    before: list[te.ComputeOp],
    out: te.Tensor,
    row: te.IterVar,
    first: int,
    lanes: int,
    together: int = 1,
) -> list[tuple[te.Tensor, te.IterVar]]:
    """Compute what depends on reductions at the loop `row` of `out`; rows have `first` indices.

    `together`: so many rows are taken in each iteration.

    Returns the stages of whole rows with their loops over vectors.
    """
    rows: list[tuple[te.Tensor, te.IterVar]] = []
    for op in before:
        if not uses_reduction(op):
            continue
        result = op.output(0)
        s[result].compute_at(s[out], row)
        if op.reduce_axis:
            at = (s[result], s[result].op.axis[0]) if together > 1 else (s[out], row)
            for partial in vectorize_reduction(s, result, lanes):
                s[partial].compute_at(*at)
        elif len(op.axis) > first:
            loop = vectorize_elements(s, result, s[result].op.axis[-1], op.axis[-1].extent, lanes)
            rows.append((result, loop))
    return rows


def inline_others(s: te.Schedule, out: te.Tensor, anchor: te.Operation) -> list[te.ComputeOp]:
    """Inline what comes behind the anchor, and what comes before its statistics. Returns the stages before it."""
    stages = [op for op in operations_behind([out]) if isinstance(op, te.ComputeOp)]
    before, behind = split_at(stages, anchor)
    for op in stages:
        if op is not out.op and (op in behind or not uses_reduction(op)):
            s[op].compute_inline()
    return before


def work_behind(out: te.Tensor) -> float:
    """Scalar operations of a kernel whose stages all have the elements of `out`, roughly."""
    return constant_size(out.shape) * element_cost(operations_behind([out]))


def split_at(stages: list[te.ComputeOp], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """The stages that the anchor reads, and the anchor with those that read it."""
    needed = {id(op) for op in operations_behind([anchor.output(0)])} - {id(anchor)}
    return [op for op in stages if id(op) in needed], [op for op in stages if id(op) not in needed]


def uses_reduction(op: te.Operation) -> bool:
    """Is this a reduction, or computed from the result of one?"""
    return any(isinstance(o, te.ComputeOp) and o.reduce_axis for o in operations_behind([op.output(0)]))


def is_worth_keeping(op: te.Operation, stages: Sequence[te.ComputeOp], anchor: te.Operation, *, near: bool) -> bool:
    """Should what is read for the anchor's statistics be computed once for a row, not in each pass that reads it?

    A store and loads from the first-level cache, `near`, cost more than an addition and less than anything longer.
    Elsewhere, or where indices are taken apart, only functions are worth it.
    """
    own_shape = tuple(op.output(0).shape) == tuple(anchor.output(0).shape)
    if not isinstance(op, te.ComputeOp) or uses_reduction(op) or not own_shape:
        return False
    passes = [reader for reader in stages if uses_reduction(reader) and op.output(0) in reader.input_tensors]
    cost = sum([_operations(o) for o in operations_behind([op.output(0)])])
    return len(passes) > 1 and cost > (1 if near else _CALL_COST - 1)


def _operations(op: te.Operation) -> int:
    """Roughly the instructions for an element, without loads."""
    nodes = list(post_order(op.body)) if isinstance(op, te.ComputeOp) else []
    choices = [e for e in nodes if isinstance(e, Select)]
    calls = [e for e in nodes if isinstance(e, Call)]
    values = [e for e in nodes if isinstance(e, Binary) and e.dtype.is_float]
    return len(values) + 2 * len(choices) + _CALL_COST * len(calls)
