"""Online sums of exponentials by blocks, for log-sum-exp and softmax, in one pass over memory.

Each block gets its own maximum and the sum of exponentials of the differences from it; these are combined over all
blocks: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr
from relayc.topi.parts import Index, Parts
from relayc.topi.reduction import distance_below, largest_number

__all__ = ["ExponentialSums"]


class ExponentialSums(Parts):
    """Sums of e^(x - maximum) over some dimensions of `x`, block by block.

    `largests` and `sums`, outputs of one operation, are those of the blocks; `largest` and `total` those of everything.
    Differences from an infinite maximum count as 0 or minus infinity with `finite`; otherwise the total is NaN then, as
    in a softmax.
    """

    def __init__(
        self, x: Tensor, sizes: Mapping[int, Dim], name: str, *, keepdims: bool = False,
        finite: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(x, sizes, name, keepdims=keepdims)
        self._finite = finite
        extents = {a: sizes[a] for a in self.several}
        largest = self.reduction(extents, self.element, largest_number)
        self.largest_of_part = te.compute(self.shape, largest, name=f"{name}_part_max")
        self.sum_of_part = te.compute(self.shape, self.reduction(extents, self._power), name=f"{name}_part_sum")
        self.largests, self.sums = te.compute(
            self.shape, lambda *i: (self.largest_of_part(*i), self.sum_of_part(*i)), name=f"{name}_parts"
        )
        self.largest = self.over_parts(lambda part: self.largests(*part), f"{name}_max", largest_number)
        self.total = self.over_parts(self._share, f"{name}_total")

    def _power(self, part: Index, at: Index) -> PrimExpr:
        return te.exp_nonpositive(distance_below(self.element(part, at), self.largest_of_part(*part)))

    def _share(self, part: Any) -> PrimExpr:
        """The contribution of a block to the total. A block that is all minus infinity has a sum of 0."""
        largests, largest = self.largests(*part), self.largest(*self.result_of(part))
        distance = distance_below(largests, largest) if self._finite else largests - largest
        return te.exp_nonpositive(distance) * self.sums(*part)
