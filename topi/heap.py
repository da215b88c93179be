"""A binary heap in the loops of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc import te
from relayc.te.tir import PrimExpr
from relayc.te.tir.ir_builder import BufferView, IRBuilder

__all__ = ["Heap"]


class Heap:
    """A heap of values and their positions in a row.

    ``above(a, place, b, other)``: must value `a` of position `place` stand above `b` of position `other`?
    """

    def __init__(
        self, ib: IRBuilder, values: BufferView, places: BufferView,
        above: Callable[[PrimExpr, Any, PrimExpr, Any], PrimExpr],
    ) -> None:  # fmt: skip
        self.ib, self.values, self.places, self.above = ib, values, places, above
        self.hole, self.last = ib.allocate("int32", 1, "hole"), ib.allocate("int32", 1, "last")

    def build(self, size: Any) -> None:
        """Order the first `size` elements as a heap."""
        with self.ib.for_range(0, size // 2, "k") as k:
            parent = self.ib.let("parent", size // 2 - 1 - k)
            self.sink(parent, self.values[parent], self.places[parent], size)

    def sink(self, at: Any, value: PrimExpr, place: Any, size: Any) -> None:
        """Sift a value down from `at`; the heap has `size` elements."""
        ib, values, places, hole, last = self.ib, self.values, self.places, self.hole, self.last
        value, place = ib.let("sunk", value), ib.let("sunk_place", place)
        hole[0], last[0] = at, size
        with ib.while_loop(2 * hole[0] + 1 < last[0]):
            parent = ib.let("parent", hole[0])
            left, right = ib.let("left", 2 * parent + 1), ib.let("right", te.min(2 * parent + 2, last[0] - 1))
            right_above = self.above(values[right], places[right], values[left], places[left])
            child = ib.let("child", te.if_then_else(right_above, right, left))
            with ib.if_scope(self.above(values[child], places[child], value, place)):
                values[parent], places[parent] = values[child], places[child]
                hole[0] = child
            with ib.else_scope():
                last[0] = 0
        values[hole[0]], places[hole[0]] = value, place
