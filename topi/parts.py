"""Two-level reductions: partial results of blocks that fit a cache, then a reduction of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, IterVar, PrimExpr, likely
from relayc.topi.utils import accumulator_type, ceil_div, same_dim

__all__ = ["Index", "Parts"]

Index = Sequence[Any]


class Parts:
    """A split of `x`, some dimensions of which are reduced, into blocks.

    `sizes` gives for each reduced dimension the elements of a block, some or all. Partial results have the dimensions
    of x, in its order (`shape`), with blocks for the reduced ones. Final results have the kept dimensions, with
    `keepdims` all of them.
    """

    def __init__(self, x: Tensor, sizes: Mapping[int, Dim], name: str, *, keepdims: bool = False) -> None:
        self.x, self.sizes, self.name = x, dict(sizes), name
        self.results = [a for a in range(x.ndim) if keepdims or a not in sizes]
        self.wide = accumulator_type(x.dtype)
        self.shape = tuple([self._parts(a) if a in sizes else d for a, d in enumerate(x.shape)])
        self.several = [a for a, size in sizes.items() if not same_dim(size, 1)] or [*sizes][-1:]

    def _parts(self, axis: int) -> Dim:
        size, extent = self.sizes[axis], self.x.shape[axis]
        return ceil_div(extent, size) if isinstance(size, int) and not same_dim(size, extent) else 1

    def _is_even(self, axis: int) -> bool:
        """Do blocks divide a dimension evenly?"""
        size, extent = self.sizes[axis], self.x.shape[axis]
        both = isinstance(size, int) and isinstance(extent, int)
        return size == 1 or same_dim(size, extent) or (both and extent % size == 0)

    def reduction(
        self, extents: Mapping[int, Dim], element: Callable[[Index, Index], Any], reducer: Callable[..., Any] = te.sum
    ) -> Callable[..., Any]:
        """The reduction of ``element(part, index into x)`` over the first `extents` of each block."""
        ks: dict[int, IterVar] = {a: te.reduce_axis((0, extent), name=f"k{a}") for a, extent in extents.items()}

        def body(*i: Any) -> Any:
            at = [self._source(a, v, ks.get(a)) for a, v in enumerate(i)]
            inside = [likely(at[a] < self.x.shape[a]) for a in ks if not self._is_even(a)]
            return reducer(element(i, at), axis=list(ks.values()), where=te.all(*inside) if inside else None)

        return body

    def _source(self, axis: int, index: Any, k: IterVar | None) -> Any:
        return index * self.sizes[axis] + (0 if k is None else k) if axis in self.sizes else index

    def element(self, _: Index, at: Index) -> PrimExpr:
        return te.cast(self.wide, self.x(*at))

    def count(self, part: Index) -> PrimExpr:
        """The number of elements in a block."""
        return self.number(self.sizes, part)

    def number(self, extents: Mapping[int, Dim], part: Index) -> PrimExpr:
        """The number of elements in the first `extents` of a block."""
        number: Any = te.const(1, "int32")
        for axis, extent in extents.items():
            rest = self.x.shape[axis] - part[axis] * self.sizes[axis]
            number = number * (extent if self._is_even(axis) else te.min(extent, rest))
        return te.cast(self.wide, number)

    def over_parts(
        self, value: Callable[[Index], PrimExpr], name: str, reducer: Callable[..., Any] = te.sum
    ) -> Tensor:
        """The reduction of ``value(part)`` over all blocks, for each index of the final results."""
        several = [a for a in self.sizes if not same_dim(self.shape[a], 1)] or [*self.sizes][-1:]
        ks: dict[int, Any] = {a: te.reduce_axis((0, self.shape[a]), name=f"p{a}") for a in several}

        def body(*i: Any) -> PrimExpr:
            at = {**dict(zip(self.results, i, strict=True)), **dict.fromkeys(self.sizes, 0), **ks}
            part = [at[a] for a in range(self.x.ndim)]
            return reducer(value(part), axis=list(ks.values()))

        shape = tuple([1 if a in self.sizes else self.x.shape[a] for a in self.results])
        attrs = {"reduces_last_axis": self.x.ndim - 1 in self.sizes}
        return te.compute(shape, body, name=name, tag=name, attrs=attrs)

    def result_of(self, part: Index) -> list[Any]:
        """The index of the final result that a block contributes to."""
        return [0 if a in self.sizes else part[a] for a in self.results]
