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

    `sizes` are the dimensions reduced, with how many elements of each a part takes: some, or all. `sums` and `squares`,
    results of one operation, have as many dimensions as x, in its order: parts for those reduced. What is made of all
    parts has the dimensions that are kept, with `keepdims` all of them.
    """

    def __init__(self, x: Tensor, sizes: Mapping[int, Dim], name: str, *, keepdims: bool = False) -> None:
        self.x, self.sizes, self.name = x, dict(sizes), name
        self.results = [a for a in range(x.ndim) if keepdims or a not in sizes]
        self.wide = accumulator_type(x.dtype)
        self.shape = tuple([self._parts(a) if a in sizes else d for a, d in enumerate(x.shape)])
        self.total = te.compute(self.shape, self._reduction(self._element), name=f"{name}_part_sum")
        self.mean = te.compute(self.shape, lambda *i: self.total(*i) / self.count(i), name=f"{name}_part_mean")
        self.distance = te.compute(self.shape, self._reduction(self._squared), name=f"{name}_part_squares")
        self.sums, self.squares = te.compute(
            self.shape, lambda *i: (self.total(*i), self.distance(*i)), name=f"{name}_parts", tag=f"{name}_parts"
        )

    def _parts(self, axis: int) -> Dim:
        size, extent = self.sizes[axis], self.x.shape[axis]
        return ceil_div(extent, size) if isinstance(size, int) and not same_dim(size, extent) else 1

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
        return index * self.sizes[axis] + (0 if k is None else k) if axis in self.sizes else index

    def _element(self, _: Index, at: Index) -> PrimExpr:
        return te.cast(self.wide, self.x(*at))

    def _squared(self, part: Index, at: Index) -> PrimExpr:
        distance = te.cast(self.wide, self.x(*at)) - self.mean(*part)
        return distance * distance

    def count(self, part: Index) -> PrimExpr:
        """The number of elements in a part."""
        number: Any = te.const(1, "int32")
        for axis, size in self.sizes.items():
            rest = self.x.shape[axis] - part[axis] * size
            number = number * (size if self._is_even(axis) else te.min(size, rest))
        return te.cast(self.wide, number)

    def over_parts(self, value: Callable[[Index], PrimExpr], name: str) -> Tensor:
        """The sum of ``value(part)`` over all parts, for each index of the results."""
        several = [a for a in self.sizes if not same_dim(self.shape[a], 1)] or [*self.sizes][-1:]
        ks: dict[int, Any] = {a: te.reduce_axis((0, self.shape[a]), name=f"p{a}") for a in several}

        def body(*i: Any) -> PrimExpr:
            at = {**dict(zip(self.results, i, strict=True)), **dict.fromkeys(self.sizes, 0), **ks}
            part = [at[a] for a in range(self.x.ndim)]
            return te.sum(value(part), axis=list(ks.values()))

        shape = tuple([1 if a in self.sizes else self.x.shape[a] for a in self.results])
        attrs = {"reduces_last_axis": self.x.ndim - 1 in self.sizes}
        return te.compute(shape, body, name=name, tag=name, attrs=attrs)

    def sum(self) -> Tensor:
        """The sum over everything, for each index of the results: the dimensions that are kept."""
        return self.over_parts(lambda part: self.sums(*part), f"{self.name}_sum")

    def squared_distances(self, mean: Callable[..., PrimExpr]) -> Tensor:
        """The sum of squared distances from ``mean(*i)``, for each index i of the results."""

        def of_part(part: Index) -> PrimExpr:
            count = self.count(part)
            result = [0 if a in self.sizes else part[a] for a in self.results]
            distance = self.sums(*part) / count - mean(*result)
            return self.squares(*part) + count * (distance * distance)

        return self.over_parts(of_part, f"{self.name}_squares")
