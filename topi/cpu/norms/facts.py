"""Facts about kernels that normalise rows, by which their schedules are chosen, and the stages around a norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Binary, Call, Select
from relayc.topi.candidates import KernelFacts
from relayc.topi.cpu.column_blocks import Columns
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import CALL_COST, element_cost, vectorize_elements
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, uses_reduction
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RowFacts", "inline_all_but", "loop_over_rows", "statistics_at"]

_SHARE_OF_L2, _SHARE_OF_LLC = 2, 2
"""Divisors of the cache sizes: rows up to that are still in a cache of a core's own, or in the last-level cache, in a
second pass."""
_SHARE_OF_L1, _WIDE_BYTES = 4, 4
"""Divisor of the L1 size: the longest row that is kept there for several passes, in elements of at least so many bytes.
"""


@dataclass(frozen=True, eq=False)
class RowFacts(KernelFacts):
    """A kernel whose anchor normalises rows: each has all elements along the dimensions `axes` of the result.

    `group`: indices of the last other dimension that are one row.
    """

    axes: tuple[int, ...]
    group: int = 1

    def over(self, axes: Iterable[int]) -> RowFacts:
        """This kernel with rows of other dimensions."""
        return replace(self, axes=tuple(axes), group=1)

    def of(self, out: te.Tensor, anchor: te.Operation) -> RowFacts:
        """The kernel as it has been rewritten."""
        return replace(self, outs=[out], anchor=anchor)

    @property
    def elements(self) -> te.Tensor:
        """The input that the anchor normalises."""
        return next(t for t in self.anchor.input_tensors if tuple(t.shape) == tuple(self.result.shape))

    @property
    def others(self) -> list[int]:
        """The dimensions by which rows are counted."""
        return [a for a in range(self.result.ndim) if a not in self.axes]

    @property
    def are_last(self) -> bool:
        """Whether rows are the last dimension alone."""
        return self.axes == (self.result.ndim - 1,)

    @property
    def are_along(self) -> bool:
        """Whether elements of a row are contiguous in memory."""
        return self.result.ndim - 1 in self.axes

    @property
    def are_trailing(self) -> bool:
        """Whether a row is one run of memory: its dimensions are the last ones."""
        return self.are_along and self.axes == tuple(range(self.axes[0], self.result.ndim))

    @cached_property
    def length(self) -> int:
        """Elements of a row."""
        return constant_size([self.result.shape[a] for a in self.axes]) * self.group

    @cached_property
    def count(self) -> int:
        """Number of rows."""
        return constant_size([self.result.shape[a] for a in self.others]) // self.group

    @cached_property
    def columns(self) -> Columns:
        """The columns of rows along a strided axis."""
        return Columns(self.out, self.axes[0], self.target)

    @property
    def work(self) -> float:
        """Scalar operations of the kernel, roughly."""
        return constant_size(self.out.shape) * element_cost(self.stages)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the anchor's result."""
        return self.length * self.result.dtype.nbytes

    @property
    def exceed_private_caches(self) -> bool:
        """Whether a second pass over a row would miss the caches private to a core."""
        return self.row_bytes > self.target.cache_bytes.l2 // _SHARE_OF_L2

    @property
    def exceed_caches(self) -> bool:
        """Whether a second pass over rows would miss all caches, or cores would be idle."""
        row, l2, l3 = self.row_bytes, self.target.cache_bytes.l2, self.target.cache_bytes.l3
        return row > max(l3 // _SHARE_OF_LLC, l2) or (row > l2 and self.count < self.target.num_cores)

    @cached_property
    def around(self) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
        """The stages that the anchor reads, and the anchor with those that read it."""
        needed = {id(op) for op in operations_behind([self.result])} - {id(self.anchor)}
        return [op for op in self.stages if id(op) in needed], [op for op in self.stages if id(op) not in needed]

    @cached_property
    def kept(self) -> list[te.ComputeOp]:
        """The elementwise stages before the anchor that are computed once for a row: see `_is_worth_keeping`."""
        nbytes = self.length * max(self.out.dtype.nbytes, _WIDE_BYTES)  # a dynamic length is taken to be long
        in_l1 = self.are_along and nbytes <= self.target.cache_bytes.l1 // _SHARE_OF_L1
        return [op for op in self.around[0] if _is_worth_keeping(op, self.stages, self.anchor, in_l1=in_l1)]

    @property
    def columns_are_one_run(self) -> bool:
        """Whether rows are along a strided axis of a static shape, with one dimension behind it."""
        ndim = self.result.ndim
        return self.is_static and self.axes == (ndim - 2,) and self.out.ndim == ndim

    @cached_property
    def of_rows(self) -> list[te.ComputeOp]:
        """The stages before the anchor that are computed once for a row: the statistics, and what is kept."""
        return [op for op in self.around[0] if uses_reduction(op) or op in self.kept]

    @cached_property
    def statistics(self) -> list[te.ComputeOp]:
        """The stages before the anchor that depend on reductions."""
        return [op for op in self.around[0] if uses_reduction(op)]


def _is_worth_keeping(op: te.Operation, stages: Sequence[te.ComputeOp], anchor: te.Operation, *, in_l1: bool) -> bool:
    """Whether an elementwise stage read by several statistics should be buffered rather than recomputed in each pass.

    A store and loads from L1 (`in_l1`) cost more than one operation and less than several. In other caches, or with
    index arithmetic, only transcendental functions are worth it.
    """
    own_shape = tuple(op.output(0).shape) == tuple(anchor.output(0).shape)
    if not isinstance(op, te.ComputeOp) or uses_reduction(op) or not own_shape:
        return False
    passes = [reader for reader in stages if uses_reduction(reader) and op.output(0) in reader.input_tensors]
    cost = sum([_operations(o) for o in operations_behind([op.output(0)])])
    return len(passes) > 1 and cost > (1 if in_l1 else CALL_COST - 1)


def _operations(op: te.Operation) -> int:
    """Estimate of the instructions per element, without loads."""
    nodes = list(post_order(op.body)) if isinstance(op, te.ComputeOp) else []
    values = [e for e in nodes if isinstance(e, Binary) and e.dtype.is_float]
    choices, calls = ([e for e in nodes if isinstance(e, kind)] for kind in (Select, Call))
    return len(values) + 2 * len(choices) + CALL_COST * len(calls)


def inline_all_but(s: te.Schedule, out: te.Tensor, kept: Sequence[te.Operation]) -> None:
    """Inline every stage of `out` but those `kept`."""
    for op in operations_behind([out]):
        if isinstance(op, te.ComputeOp) and op is not out.op and op not in kept:
            s[op].compute_inline()


def loop_over_rows(s: te.Schedule, out: te.Tensor, rows: RowFacts, together: int = 1) -> te.IterVar:
    """The parallel loop over rows of `out`, so many `together` in an iteration, outside of all other loops."""
    axes = list(s[out].op.axis)
    outer = [axes[a] for a in rows.others]
    s[out].reorder(*outer, *[axes[a] for a in rows.axes])
    if rows.group > 1:
        outer[-1], _ = s[out].split(outer[-1], factor=rows.group)
    row = s[out].fuse(*outer)
    if together > 1:
        row, _ = s[out].split(row, factor=together)
    parallel(s, out, row, rows.work, vector_lanes(rows.target))
    return row


def statistics_at(
    s: te.Schedule, stages: Sequence[te.ComputeOp], out: te.Tensor, row: te.IterVar, rows: RowFacts, together: int = 1
) -> list[tuple[te.Tensor, te.IterVar]]:
    """Compute the stages of rows at the loop `row` of `out`, which has so many rows `together`.

    Returns the stages that hold whole rows, with their loops over vectors.
    """
    whole, lanes = list[tuple[te.Tensor, te.IterVar]](), vector_lanes(rows.target)
    for op in stages:
        result = op.output(0)
        s[result].compute_at(s[out], row)
        if op.reduce_axis:
            vectorize_reduction(s, result, lanes, (result, s[result].op.axis[0]) if together > 1 else (out, row))
        elif len(op.axis) > len(rows.others):
            axis = s[result].op.axis[-1]
            whole.append((result, vectorize_elements(s, result, axis, extent_of(axis), lanes)))
    return whole
