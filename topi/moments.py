"""Means and variances by parts: one pass over memory.

A part gets its sum, and the sum of squared distances from its own mean. Those of all parts give the distances from the
mean of everything, without cancellation: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances" (1979). Those of a part come from sums of distances from the mean of its beginning, and of
their squares, also in one pass. Where the beginning is an n-th of the part its mean is no further from the part's than
sqrt(n) standard deviations of the part, so the squares are at most n + 1 times as large as what stays of them.
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

_SHARE_OF_BEGINNING = 16
"""Of a part, what its distances are measured from is the mean of a sixteenth."""
_sums = te.comm_reducer(lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda *t: [te.const(0, of) for of in t], name="sums")


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
        several = [a for a, size in sizes.items() if not same_dim(size, 1)] or [*sizes][-1:]
        begins = {a: ceil_div(sizes[a], _SHARE_OF_BEGINNING) if a == several[0] else sizes[a] for a in several}
        self.beginning = te.compute(self.shape, self._reduction(begins, self._element), name=f"{name}_part_beginning")
        self.shift = te.compute(
            self.shape, lambda *i: self.beginning(*i) / self._number(begins, i), name=f"{name}_part_shift"
        )
        body = self._reduction({a: sizes[a] for a in several}, self._distances)
        self.distances = te.compute(self.shape, body, name=f"{name}_part_distances")
        self.sums, self.squares = te.compute(self.shape, self._part, name=f"{name}_parts", tag=f"{name}_parts")

    def _parts(self, axis: int) -> Dim:
        size, extent = self.sizes[axis], self.x.shape[axis]
        return ceil_div(extent, size) if isinstance(size, int) and not same_dim(size, extent) else 1

    def _is_even(self, axis: int) -> bool:
        """Are all parts along a dimension of one size?"""
        size, extent = self.sizes[axis], self.x.shape[axis]
        both = isinstance(size, int) and isinstance(extent, int)
        return size == 1 or same_dim(size, extent) or (both and extent % size == 0)

    def _reduction(self, extents: Mapping[int, Dim], element: Callable[[Index, Index], Any]) -> Callable[..., Any]:
        """Sums of ``element(part, place in x)`` over the first `extents` of each part."""
        ks: dict[int, IterVar] = {a: te.reduce_axis((0, extent), name=f"k{a}") for a, extent in extents.items()}

        def body(*i: Any) -> Any:
            at = [self._source(a, v, ks.get(a)) for a, v in enumerate(i)]
            inside = [at[a] < self.x.shape[a] for a in ks if not self._is_even(a)]
            where, value = te.all(*inside) if inside else None, element(i, at)
            reduction = _sums if isinstance(value, tuple) else te.sum
            return reduction(value, axis=list(ks.values()), where=where)

        return body

    def _source(self, axis: int, index: Any, k: IterVar | None) -> Any:
        return index * self.sizes[axis] + (0 if k is None else k) if axis in self.sizes else index

    def _element(self, _: Index, at: Index) -> PrimExpr:
        return te.cast(self.wide, self.x(*at))

    def _distances(self, part: Index, at: Index) -> tuple[PrimExpr, PrimExpr]:
        distance = self._element(part, at) - self.shift(*part)
        return distance, distance * distance

    def _part(self, *part: Any) -> tuple[PrimExpr, PrimExpr]:
        count, (distance, squares) = self.count(part), [t(*part) for t in self.distances]
        rest = squares - distance * (distance / count)
        return distance + self.shift(*part) * count, te.maximum(rest, te.const(0, self.wide))

    def count(self, part: Index) -> PrimExpr:
        """The number of elements in a part."""
        return self._number(self.sizes, part)

    def _number(self, extents: Mapping[int, Dim], part: Index) -> PrimExpr:
        """How many elements the first `extents` of a part are."""
        number: Any = te.const(1, "int32")
        for axis, extent in extents.items():
            rest = self.x.shape[axis] - part[axis] * self.sizes[axis]
            number = number * (extent if self._is_even(axis) else te.min(extent, rest))
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
