"""EmbeddingBag: reductions over bags of rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.groups import constant_size
from relayc.topi.loops import blocks_of
from relayc.topi.utils import accumulator_type

__all__ = ["embedding_bag"]

_BLOCK_COLUMNS = 64
"""Columns of a block, whose sums stay in registers, as several vectors, over all rows of a bag."""
_WORTH_SHARING = 1 << 14
"""The least elements of the result for which bags run in parallel."""


def embedding_bag(
    table: Tensor, positions: Tensor, starts: Tensor, ends: Tensor, factors: Tensor | None = None, mode: str = "sum"
) -> Tensor:
    """(B, D): for each bag b the "sum", "mean" or "max" of the rows of `table` (N, D) at positions[starts[b]:ends[b]].

    Starts and ends are clamped as in numpy's slices, and positions to the table. Rows are multiplied by `factors`, of
    the length of `positions`. The sum and the mean of an empty bag are 0, its maximum is -inf.
    """
    columns, bags = table.shape[1], starts.shape[0]
    inputs = [table, positions, starts, ends, *(() if factors is None else (factors,))]

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        out = ib.buffer(outs[0])
        bag = _Bag(ib, [ib.buffer(b) for b in ins], table.shape[0], positions.shape[0], table.dtype, mode)
        kind = "parallel" if constant_size((bags, columns)) >= _WORTH_SHARING else "serial"
        with ib.for_range(0, bags, "bag", kind, independent=True) as b:
            bag.open(b)
            for begin, count, width in blocks_of(columns, _BLOCK_COLUMNS):
                with ib.for_range(0, count, "block") as block:
                    bag.write(out, b, begin + block * width, width)
        return ib.get()

    return te.extern((bags, columns), inputs, fill, name="embedding_bag", dtype=table.dtype, tag="default")


class _Bag:
    """Emits the reduction over the rows of the current bag."""

    def __init__(
        self, ib: IRBuilder, ins: Sequence[BufferView], rows: Dim, length: Dim, dtype: Any, mode: str
    ) -> None:
        self.ib, self.rows, self.length, self.mode = ib, rows, length, mode
        self.table, self.positions, self.starts, self.ends, *self.factors = ins
        self.dtype, self.wide = dtype, accumulator_type(dtype)

    def open(self, bag: Any) -> None:
        """Load the begin and end of `bag`."""
        self.begin = self.ib.let("begin", self._limited(self.starts[bag]))
        self.end = self.ib.let("end", self._limited(self.ends[bag]))

    def _limited(self, position: PrimExpr) -> PrimExpr:
        """A position as in a slice: negative ones count from the end."""
        length = te.cast(position.dtype, self.length)
        counted = te.select(position < 0, position + length, position)
        zero = te.const(0, position.dtype)
        return te.cast("int32", te.max(zero, te.min(counted, length)))

    def write(self, out: BufferView, bag: Any, column: Any, width: int) -> None:
        """The results for `width` columns from `column` on."""
        ib, largest = self.ib, self.mode == "max"
        total = ib.allocate(self.wide, width, "total", scope="local")
        start = te.min_value(self.wide) if largest else te.const(0, self.wide)
        if largest and start.dtype.is_float:
            start = -te.infinity(self.wide)

        def lanes() -> Any:
            return ib.for_range(0, width, "lane", "vectorized" if width > 1 else "serial")

        with lanes() as lane:
            total[lane] = start
        with ib.for_range(self.begin, self.end, "k") as k:
            place = ib.let("place", self.positions[k])
            row = ib.let("row", self._row(place))
            factor = None if not self.factors else ib.let("factor", te.cast(self.wide, self.factors[0][k]))
            with lanes() as lane:
                value = te.cast(self.wide, self.table[row, column + lane])
                value = value if factor is None else value * factor
                total[lane] = te.max(total[lane], value) if largest else total[lane] + value
        with lanes() as lane:
            value = total[lane]
            if self.mode == "mean":
                value = value / te.cast(self.wide, te.max(self.end - self.begin, 1))
            out[bag, column + lane] = te.cast(self.dtype, value)

    def _row(self, place: PrimExpr) -> PrimExpr:
        count = te.cast(place.dtype, self.rows)
        counted = te.select(place < 0, place + count, place)
        zero, last = te.const(0, place.dtype), count - te.const(1, place.dtype)
        return te.cast("int32", te.max(zero, te.min(counted, last)))
