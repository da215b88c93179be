"""Online softmax along a strided axis, by blocks that fit the first-level cache, in one pass over memory.

Each block of a row gets its own maximum, exponentials of the differences from it, and their sum; these are combined
over all blocks: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import DType
from relayc.te.tir import PrimExpr
from relayc.topi.reduction import largest_number
from relayc.topi.tag import ELEMWISE
from relayc.topi.utils import ceil_div

__all__ = ["SoftmaxParts"]

Index = Sequence[Any]


class SoftmaxParts:
    """exp(x - max) / sum of ``element(*i)`` along the last dimension but one of `shape`, `size` of its rows at a time.

    Stages with the blocks in that dimension and their rows in the next: `values`, the elements (None unless `keep`),
    and `exponentials`. For each block: `largest_of_part`, `sum_of_part`, `power` (e to the difference of its maximum
    from the overall one) and `share`, the factor of its exponentials. For each column: `largest`, `total`. `result` has
    the type `dtype`. Rows missing in the last block contribute nothing.
    """

    def __init__(
        self, element: Callable[..., PrimExpr], shape: tuple[int, ...], size: int, dtype: DType, *, keep: bool
    ) -> None:
        *outer, rows, columns = shape
        self.axis, self.size, self.rows = len(outer), size, rows
        parts = ceil_div(rows, size)
        assert isinstance(parts, int)
        of_parts, of_rows = (*outer, parts, columns), (*outer, parts, size, columns)
        self._element = element
        self.values = te.compute(of_rows, self._inside(self._read), name="softmax_part_values") if keep else None
        self.largest_of_part = self._of_part(of_parts, self._largest, "softmax_part_max")
        self.exponentials = te.compute(of_rows, self._inside(self._exponential), name="softmax_part_exp")
        self.sum_of_part = self._of_part(of_parts, self._sum, "softmax_part_sum")
        self.largest = self._of_parts((*outer, columns), parts, self._largest_of_all, "softmax_max")
        self.power = te.compute(of_parts, self._power, name="softmax_part_exponential")
        self.total = self._of_parts((*outer, columns), parts, self._sum_of_all, "softmax_sum")
        self.share = te.compute(of_parts, self._share, name="softmax_part_share")

        def scaled(*i: Any) -> PrimExpr:
            (*before, row, column), part = i, i[self.axis] // size
            exponential = self.exponentials(*before, part, row % size, column)
            return te.cast(dtype, exponential * self.share(*before, part, column))

        self.result = te.compute(shape, scaled, name="softmax", tag=ELEMWISE)

    def _row(self, part: Index, k: Any) -> PrimExpr:
        return part[self.axis] * self.size + k

    def _exists(self, part: Index, k: Any) -> PrimExpr | None:
        """Does this row of a block exist? None where all do."""
        return self._row(part, k) < self.rows if self.rows % self.size else None

    def _read(self, part: Index, k: Any) -> PrimExpr:
        return self._element(*part[: self.axis], self._row(part, k), part[-1])

    def _value(self, part: Index, k: Any) -> PrimExpr:
        return self._read(part, k) if self.values is None else self.values(*part[:-1], k, part[-1])

    def _inside(self, value: Callable[[Index, Any], PrimExpr]) -> Callable[..., PrimExpr]:
        """`value`, with 0 for rows that don't exist."""

        def body(*i: Any) -> PrimExpr:
            part, k = (*i[:-2], i[-1]), i[-2]
            result, exists = value(part, k), self._exists(part, k)
            return result if exists is None else te.if_then_else(exists, result, te.const(0, result.dtype))

        return body

    def _of_part(self, shape: Index, reduction: Callable[[Index, Any], PrimExpr], name: str) -> Tensor:
        k = te.reduce_axis((0, self.size), name="k")
        return te.compute(tuple(shape), lambda *i: reduction(i, k), name=name)

    def _of_parts(self, shape: Index, parts: int, reduction: Callable[[Index, Any], PrimExpr], name: str) -> Tensor:
        p = te.reduce_axis((0, parts), name="p")
        return te.compute(tuple(shape), lambda *i: reduction((*i[:-1], p, i[-1]), p), name=name)

    def _largest(self, part: Index, k: Any) -> PrimExpr:
        """The maximum of a block, kept finite: a block that is all minus infinity has exponentials of 0."""
        value = self._value(part, k)
        return largest_number(value, axis=k, where=self._exists(part, k), init=te.min_value(value.dtype))

    def _exponential(self, part: Index, k: Any) -> PrimExpr:
        return te.exp_nonpositive(self._value(part, k) - self.largest_of_part(*part))

    def _sum(self, part: Index, k: Any) -> PrimExpr:
        return te.sum(self.exponentials(*part[:-1], k, part[-1]), axis=k)

    def _largest_of_all(self, part: Index, p: Any) -> PrimExpr:
        return largest_number(self.largest_of_part(*part), axis=p)

    def _power(self, *part: Any) -> PrimExpr:
        return te.exp_nonpositive(self.largest_of_part(*part) - self.largest(*part[:-2], part[-1]))

    def _sum_of_all(self, part: Index, p: Any) -> PrimExpr:
        return te.sum(self.power(*part) * self.sum_of_part(*part), axis=p)

    def _share(self, *part: Any) -> PrimExpr:
        return self.power(*part) / self.total(*part[:-2], part[-1])
