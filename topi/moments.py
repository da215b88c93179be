"""Means and variances by parts: one pass over memory.

A part gets its sum, and the sum of squared distances from its own mean. Those of all parts give the distances from the
mean of everything, without cancellation: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances" (1979). Those of a part come from sums of distances from the mean of its beginning, and of
their squares, also in one pass. Where the beginning is an n-th of the part its mean is no further from the part's than
sqrt(n) standard deviations of the part, so the squares are at most n + 1 times as large as what stays of them.
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
"""Of a part, what its distances are measured from is the mean of a sixteenth."""
_sums = te.comm_reducer(lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda *t: [te.const(0, of) for of in t], name="sums")


class Moments(Parts):
    """Sums over some dimensions of `x`, part by part, and sums of squared distances from the mean of each part.

    `sums` and `squares` are results of one operation.
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
        """The sum over everything, for each index of the results: the dimensions that are kept."""
        return self.over_parts(lambda part: self.sums(*part), f"{self.name}_sum")

    def squared_distances(self, mean: Callable[..., PrimExpr]) -> Tensor:
        """The sum of squared distances from ``mean(*i)``, for each index i of the results."""

        def of_part(part: Index) -> PrimExpr:
            count = self.count(part)
            distance = self.sums(*part) / count - mean(*self.result_of(part))
            return self.squares(*part) + count * (distance * distance)

        return self.over_parts(of_part, f"{self.name}_squares")
