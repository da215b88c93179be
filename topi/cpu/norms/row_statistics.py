"""Helpers for kernels that compute statistics of rows and go over the rows again with them."""

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
    "elements_of",
    "estimated_work",
    "inline_others",
    "is_worth_keeping",
    "prefetch_next_rows",
    "split_at",
    "statistics_at",
    "uses_reduction",
]  # fmt: skip

_CALL_COST = 16
"""Cost of a transcendental function, in scalar operations."""


def elements_of(anchor: te.Operation) -> te.Tensor:
    """Return the input that a norm normalises."""
    return next(t for t in anchor.input_tensors if tuple(t.shape) == tuple(anchor.output(0).shape))


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
            at = (s[result], s[result].op.axis[0]) if together > 1 else (s[out], row)
            for partial in vectorize_reduction(s, result, lanes):
                s[partial].compute_at(*at)
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


def split_at(stages: list[te.ComputeOp], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """Split `stages` into those that the anchor reads, and the anchor with those that read it."""
    needed = {id(op) for op in operations_behind([anchor.output(0)])} - {id(anchor)}
    return [op for op in stages if id(op) in needed], [op for op in stages if id(op) not in needed]


def uses_reduction(op: te.Operation) -> bool:
    """True for a reduction, or a stage computed from the result of one."""
    return any(isinstance(o, te.ComputeOp) and o.reduce_axis for o in operations_behind([op.output(0)]))


def is_worth_keeping(op: te.Operation, stages: Sequence[te.ComputeOp], anchor: te.Operation, *, in_l1: bool) -> bool:
    """True if an elementwise stage read by several statistics should be buffered rather than recomputed in each pass.

    A store and loads from L1 (`in_l1`) cost more than one operation and less than several. In other caches, or with
    index arithmetic, only transcendental functions are worth it.
    """
    own_shape = tuple(op.output(0).shape) == tuple(anchor.output(0).shape)
    if not isinstance(op, te.ComputeOp) or uses_reduction(op) or not own_shape:
        return False
    passes = [reader for reader in stages if uses_reduction(reader) and op.output(0) in reader.input_tensors]
    cost = sum([_operations(o) for o in operations_behind([op.output(0)])])
    return len(passes) > 1 and cost > (1 if in_l1 else _CALL_COST - 1)


def _operations(op: te.Operation) -> int:
    """Estimate the instructions per element, without loads."""
    nodes = list(post_order(op.body)) if isinstance(op, te.ComputeOp) else []
    choices = [e for e in nodes if isinstance(e, Select)]
    calls = [e for e in nodes if isinstance(e, Call)]
    values = [e for e in nodes if isinstance(e, Binary) and e.dtype.is_float]
    return len(values) + 2 * len(choices) + _CALL_COST * len(calls)
