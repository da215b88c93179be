"""Means and variances by blocks, in one pass over memory.

Each block gets its sum and the sum of squared differences from its own mean. Those of all blocks give the variance of
everything, without cancellation: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances" (1979). Those of a block come from sums of differences from the mean of its beginning, and of their
squares, also in one pass. Where the beginning is an n-th of the block, its mean differs from the block's by at most
sqrt(n) standard deviations of the block, so that the sum of squares is at most n + 1 times the result of the
subtraction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr
from relayc.topi.parts import Index, Parts
from relayc.topi.utils import ceil_div

__all__ = ["Moments"]

_SHARE_OF_BEGINNING = 16
"""A block's differences are taken from the mean of the first n-th of it, n being this."""
_sums = te.comm_reducer(lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda *t: [te.const(0, of) for of in t], name="sums")


class Moments(Parts):
    """Sums over some dimensions of `x`, block by block, and sums of squared differences from the mean of each block.

    `sums` and `squares` are outputs of one operation.
    """

    def __init__(self, x: Tensor, sizes: Mapping[int, Dim], name: str, *, keepdims: bool = False) -> None:
        super().__init__(x, sizes, name, keepdims=keepdims)
        first = self.several[0]
        begins = {a: ceil_div(sizes[a], _SHARE_OF_BEGINNING) if a == first else sizes[a] for a in self.several}
        self.beginning = te.compute(self.shape, self.reduction(begins, self.element), name=f"{name}_part_beginning")
        self.shift = te.compute(
            self.shape, lambda *i: self.beginning(*i) / self.number(begins, i), name=f"{name}_part_shift"
        )
        body = self.reduction({a: sizes[a] for a in self.several}, self._distances, _sums)
        self.distances = te.compute(self.shape, body, name=f"{name}_part_distances")
        self.sums, self.squares = te.compute(self.shape, self._part, name=f"{name}_parts", tag=f"{name}_parts")

    def _distances(self, part: Index, at: Index) -> tuple[PrimExpr, PrimExpr]:
        distance = self.element(part, at) - self.shift(*part)
        return distance, distance * distance

    def _part(self, *part: Any) -> tuple[PrimExpr, PrimExpr]:
        count, (distance, squares) = self.count(part), [t(*part) for t in self.distances]
        rest = squares - distance * (distance / count)
        return distance + self.shift(*part) * count, te.maximum(rest, te.const(0, self.wide))

    def sum(self) -> Tensor:
        """The sum over all blocks, for each index of the kept dimensions."""
        return self.over_parts(lambda part: self.sums(*part), f"{self.name}_sum")

    def squared_distances(self, mean: Callable[..., PrimExpr]) -> Tensor:
        """The sum of squared differences from ``mean(*i)``, for each index i of the kept dimensions."""

        def of_part(part: Index) -> PrimExpr:
            count = self.count(part)
            distance = self.sums(*part) / count - mean(*self.result_of(part))
            return self.squares(*part) + count * (distance * distance)

        return self.over_parts(of_part, f"{self.name}_squares")
