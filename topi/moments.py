"""Means and variances by parts that a cache holds: one pass over memory.

A part gets its sum, and the sum of squared distances from its own mean: two passes, the second one over what the first
has brought into the cache. Those of all parts give the distances from the mean of everything, without cancellation:
Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import te
from te import Tensor
from te.tir import Dim, IterVar, PrimExpr
from topi.utils import accumulator_type, ceil_div, same_dim

__all__ = ["Moments"]

Index = Sequence[Any]


class Moments:
    """Sums over some dimensions of `x`, part by part, and sums of squared distances from the mean of each part.

    `sizes` are the dimensions reduced, with how many elements of each a part takes: some, or all. ``parts``, the tensors
    `sums` and `squares` of one operation, have as many dimensions as x, in its order: parts for those reduced.
    `backwards`: parts are taken from the end of memory, so that its beginning is in the cache for who comes next.
    """

    def __init__(self, x: Tensor, sizes: Mapping[int, Dim], name: str, backwards: bool = False) -> None:
        self.x, self.sizes, self.name = x, dict(sizes), name
        self.wide = accumulator_type(x.dtype)
        last = x.ndim - 1
        self.turned = [backwards and (a in sizes or a != last) for a in range(x.ndim)]
        self.shape = tuple([self._parts(a) if a in sizes else d for a, d in enumerate(x.shape)])
        self.total = te.compute(self.shape, self._reduction(self._element), name=f"{name}_part_sum")
        self.mean = te.compute(
            self.shape, lambda *i: self.total(*i) / self.count(i), name=f"{name}_part_mean"
        )
        self.distance = te.compute(self.shape, self._reduction(self._squared), name=f"{name}_part_squares")
        self.sums, self.squares = te.compute(
            self.shape, lambda *i: (self.total(*i), self.distance(*i)), name=f"{name}_parts", tag=f"{name}_parts"
        )

    def _parts(self, axis: int) -> Dim:
        return 1 if same_dim(self.sizes[axis], self.x.shape[axis]) else ceil_div(self.x.shape[axis], self.sizes[axis])

    def _place(self, axis: int, index: Any) -> Any:
        """The part that comes at `index`, or the element of a dimension that is kept."""
        return self.shape[axis] - 1 - index if self.turned[axis] else index

    def _is_even(self, axis: int) -> bool:
        """Are all parts along a dimension of one size?"""
        size, extent = self.sizes[axis], self.x.shape[axis]
        both = isinstance(size, int) and isinstance(extent, int)
        return size == 1 or same_dim(size, extent) or (both and extent % size == 0)

    def _reduction(self, element: Callable[[Index, Index], PrimExpr]) -> Callable[..., PrimExpr]:
        several = [a for a, size in self.sizes.items() if not same_dim(size, 1)] or [*self.sizes][-1:]
        ks: dict[int, IterVar] = {a: te.reduce_axis((0, self.sizes[a]), name=f"k{a}") for a in several}

        def body(*i: Any) -> PrimExpr:
            at = [self._source(a, v, ks.get(a)) for a, v in enumerate(i)]
            inside = [at[a] < self.x.shape[a] for a in ks if not self._is_even(a)]
            where = te.all(*inside) if inside else None
            return te.sum(element(i, at), axis=list(ks.values()), where=where)

        return body

    def _source(self, axis: int, index: Any, k: IterVar | None) -> Any:
        place = self._place(axis, index)
        if axis not in self.sizes:
            return place
        return place * self.sizes[axis] + (0 if k is None else k)

    def _element(self, _: Index, at: Index) -> PrimExpr:
        return te.cast(self.wide, self.x(*at))

    def _squared(self, part: Index, at: Index) -> PrimExpr:
        distance = te.cast(self.wide, self.x(*at)) - self.mean(*part)
        return distance * distance

    def count(self, part: Index) -> PrimExpr:
        """The number of elements in a part."""
        number: Any = te.const(1, "int32")
        for axis, size in self.sizes.items():
            rest = self.x.shape[axis] - self._place(axis, part[axis]) * size
            number = number * (size if self._is_even(axis) else te.min(size, rest))
        return te.cast(self.wide, number)

    def over_parts(self, value: Callable[[Index], PrimExpr], name: str) -> Tensor:
        """The sum of ``value(part)`` over all parts, for each index of the dimensions that are kept."""
        kept = [a for a in range(self.x.ndim) if a not in self.sizes]
        several = [a for a in self.sizes if not same_dim(self.shape[a], 1)] or [*self.sizes][-1:]
        ks = {a: te.reduce_axis((0, self.shape[a]), name=f"p{a}") for a in several}

        def body(*i: Any) -> PrimExpr:
            at = {a: self._place(a, v) for a, v in zip(kept, i, strict=True)}
            part = [at[a] if a in at else ks.get(a, 0) for a in range(self.x.ndim)]
            return te.sum(value(part), axis=list(ks.values()))

        return te.compute(tuple([self.x.shape[a] for a in kept]), body, name=name, tag=name)

    def sum(self) -> Tensor:
        """The sum over everything, for each index of the dimensions that are kept."""
        return self.over_parts(lambda part: self.sums(*part), f"{self.name}_sum")

    def squared_distances(self, mean: Callable[..., PrimExpr]) -> Tensor:
        """The sum of squared distances from ``mean(*i)``, for each index i of the dimensions that are kept."""
        kept = [a for a in range(self.x.ndim) if a not in self.sizes]

        def of_part(part: Index) -> PrimExpr:
            count = self.count(part)
            distance = self.sums(*part) / count - mean(*[self._place(a, part[a]) for a in kept])
            return self.squares(*part) + count * (distance * distance)

        return self.over_parts(of_part, f"{self.name}_squares")
