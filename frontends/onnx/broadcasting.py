"""Broadcasting at run time: of sizes that may be equal, or 1, only when the model runs.

Types of the graph IR take two symbolic sizes to be equal where an operator broadcasts. Where one may be 1, the operands
are broadcast explicitly, to a size that the program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.op.common import with_dim
from relayc.relay.sizes import add_sizes, dims_equal, is_at_least, is_one, larger, may_be_one, normal, one_or, product
from relayc.relay.type import broadcast_shapes
from relayc.te.tir import Dim, SizeVar

__all__ = ["Broadcasting"]

_MOST_PARTS = 2
"""Most sizes whose common size is an expression of them; that of more is a variable, so that expressions stay small."""


class Broadcasting:
    """The sizes that were broadcast together in one import.

    `may_broadcast` says of a size whether it may be 1; `name_size` binds an expression to a size variable, and
    `check_equal` adds a check.
    """

    def __init__(
        self,
        may_broadcast: Callable[[Dim], bool],
        name_size: Callable[[Dim], Dim],
        check_equal: Callable[[Dim, Dim], None],
    ) -> None:
        self._may_broadcast, self._name_size, self._check_equal = may_broadcast, name_size, check_equal
        self._parts: dict[Dim, set[Dim]] = {}
        """the sizes that a size was broadcast from, directly or not"""
        self._common: dict[frozenset[Dim], Dim] = {}
        """the size that these broadcast to: one for all orders in which they are"""

    def align(self, operands: Sequence[Expr], kept: int) -> Sequence[Expr]:
        """The operands broadcast where their sizes may be 1, but for the last `kept` axes."""
        shapes = [x.shape[: max(len(x.shape) - kept, 0)] for x in operands]
        if all(shape == shapes[0] for shape in shapes):
            return operands
        operands = [self._with_ones(x, shape, shapes) for x, shape in zip(operands, shapes, strict=True)]
        shapes = [x.shape[: len(shape)] for x, shape in zip(operands, shapes, strict=True)]
        if not any(self._may_broadcast(d) for s in shapes for d in s):
            return operands
        common = self.shape(*shapes)
        return [self.broadcast(x, common[len(common) - len(s) :]) for x, s in zip(operands, shapes, strict=True)]

    def _with_ones(self, x: Expr, shape: Sequence[Dim], shapes: Sequence[Sequence[Dim]]) -> Expr:
        """`x` with the number 1 for each of its leading sizes `shape` that is at most 1, and is broadcast to another of
        `shapes`: later passes need no arithmetic to see that the first of n rows, which are min(1, n), is broadcast.
        The number 1 is broadcast to it, and it may be 0."""
        for axis, d in enumerate(shape, start=-len(shape)):
            others = [other[axis] for other in shapes if len(other) >= -axis]
            is_kept = all(other == 1 or dims_equal(d, other) for other in others)
            if isinstance(d, int | SizeVar) or is_kept or not is_at_least(1, d):
                continue
            self._check_equal(d, 1)
            x = op.reshape(x, with_dim(x.shape, axis + len(shape), 1))
        return x

    def broadcast(self, x: Expr, shape: Sequence[Dim]) -> Expr:
        """`x` with those of its leading sizes repeated that may be 1 at run time and not in `shape`."""
        for axis, (d, wanted) in enumerate(zip(x.shape, shape, strict=False)):
            if d != 1 and not dims_equal(d, wanted) and self._may_broadcast(d):
                x = op.take(x, op.arange(0, wanted, 1, "int64"), axis, mode="clip")
        return x

    def shape(self, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape that shapes broadcast to; raises as `broadcast_shapes` does."""
        rank = max(map(len, shapes))
        padded = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
        columns = [self._size([d for d in dims if d != 1]) for dims in zip(*padded, strict=True)]
        return tuple(columns)

    def _size(self, dims: Sequence[Dim]) -> Dim:
        """The size that sizes other than the number 1 broadcast to."""
        different = [d for i, d in enumerate(dims) if not any(dims_equal(d, e) for e in dims[:i])]
        if len(different) < 2 or not any(map(self._may_broadcast, different)):
            return broadcast_shapes(*[(d,) for d in dims])[0] if dims else 1
        parts = {normal(part) for d in different for part in self._parts.get(normal(d), (d,))}
        common = next((d for d in sorted(parts, key=str) if not may_be_one(d)), self._common.get(frozenset(parts)))
        if common is None:
            common = normal(larger(reduce(one_or, different), 0))
            if len(parts) > _MOST_PARTS:
                common = self._name_size(common)
            self._parts[common], self._common[frozenset(parts)] = parts, common
        for d in different:
            if not may_be_one(d):
                broadcast_shapes((d,), (common,))
            else:
                self._check_equal(d, _one_or_common(d, common))
        return common


def _one_or_common(d: Dim, common: Dim) -> Dim:
    """1 for a size d of 1, else the common size."""
    return add_sizes(common, product((is_one(d), add_sizes(1, product((-1, common))))))
