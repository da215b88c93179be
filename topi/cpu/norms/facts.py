"""Facts about kernels that normalise rows, computed once, by which their schedules are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Binary, Call, Select
from relayc.topi.candidates import KernelFacts
from relayc.topi.cpu.elements import CALL_COST
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = [
    "RowFacts", "elements_of", "exceeds_caches", "exceeds_private_caches", "is_worth_keeping", "split_at",
    "uses_reduction",
]  # fmt: skip

_SHARE_OF_L2, _SHARE_OF_LLC = 2, 2
"""Divisors of the cache sizes: rows up to that are still in a cache of a core's own, or in the last-level cache, in a
second pass."""


@dataclass(frozen=True, eq=False)
class RowFacts(KernelFacts):
    """A kernel whose anchor normalises rows: each has all elements along the dimensions `axes` of the result."""

    axes: tuple[int, ...]

    @property
    def are_last(self) -> bool:
        """Whether rows are the last dimension alone."""
        return self.axes == (self.result.ndim - 1,)

    @cached_property
    def length(self) -> int:
        """Elements of a row."""
        return constant_size([self.result.shape[a] for a in self.axes])

    @cached_property
    def count(self) -> int:
        """Number of rows."""
        return constant_size([d for a, d in enumerate(self.result.shape) if a not in self.axes])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the anchor's result."""
        return self.length * self.result.dtype.nbytes

    @property
    def exceed_caches(self) -> bool:
        """Whether a second pass over rows would miss all caches, or cores would be idle."""
        return exceeds_caches(self.row_bytes, self.count, self.target)

    @cached_property
    def around(self) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
        """The stages that the anchor reads, and the anchor with those that read it."""
        return split_at(self.stages, self.anchor)

    def kept(self, *, in_l1: bool) -> list[te.ComputeOp]:
        """The stages before the anchor that are computed once for a row and kept: see `is_worth_keeping`."""
        return [op for op in self.around[0] if is_worth_keeping(op, self.stages, self.anchor, in_l1=in_l1)]


def exceeds_caches(row: int, rows: int, target: Target) -> bool:
    """Whether a second pass over `rows` rows of `row` bytes would miss all caches, or cores would be idle."""
    l2, l3 = target.cache_bytes.l2, target.cache_bytes.l3
    return row > max(l3 // _SHARE_OF_LLC, l2) or (row > l2 and rows < target.num_cores)


def exceeds_private_caches(row: int, target: Target) -> bool:
    """Whether a second pass over a row of so many bytes would miss the caches private to a core."""
    return row > target.cache_bytes.l2 // _SHARE_OF_L2


def elements_of(anchor: te.Operation) -> te.Tensor:
    """The input that a norm normalises."""
    return next(t for t in anchor.input_tensors if tuple(t.shape) == tuple(anchor.output(0).shape))


def split_at(stages: Sequence[te.ComputeOp], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """The stages that the anchor reads, and the anchor with those that read it."""
    needed = {id(op) for op in operations_behind([anchor.output(0)])} - {id(anchor)}
    return [op for op in stages if id(op) in needed], [op for op in stages if id(op) not in needed]


def uses_reduction(op: te.Operation) -> bool:
    """Whether a stage is a reduction, or computed from the result of one."""
    return any(isinstance(o, te.ComputeOp) and o.reduce_axis for o in operations_behind([op.output(0)]))


def is_worth_keeping(op: te.Operation, stages: Sequence[te.ComputeOp], anchor: te.Operation, *, in_l1: bool) -> bool:
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
