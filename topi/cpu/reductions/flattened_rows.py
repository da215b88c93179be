"""Short rows flattened on CPUs: adjacent rows are one line, which is computed in whole vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.cpu.common import attach, reduce_by_vectors
from relayc.topi.cpu.elements import elements_per_step, vectorize_elements
from relayc.topi.cpu.lane_sums import sum_rows
from relayc.topi.cpu.prefetch import (
    in_sequence,
    inputs_of,
    is_beyond_caches,
    is_streamed,
    prefetch_places,
    prefetch_rows,
    rows_of_whole_lines,
)
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, is_static

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["FlattenedRows"]

_MOST_ELEMENTS = 128
"""Most elements of a flattened row: the code of its results is unrolled for as many rows as a vector has lanes."""


@dataclass(frozen=True)
class FlattenedRows:
    """A line of as many adjacent rows of `length` elements as a vector has `lanes`: it is whole vectors.

    `rows` are the leading dimensions. Several lines are taken `together` where one would end within a cache line.
    """

    rows: tuple[te.Dim, ...]
    length: int
    lanes: int
    target: Target
    together: int = 1

    @staticmethod
    def of(shape: Sequence[te.Dim], target: Target, most: int = _MOST_ELEMENTS) -> FlattenedRows | Refused:
        """Flatten the rows of a tensor; refused if rows exceed `most` elements, are fewer than lanes, or are dynamic.
        """
        *rows, length = shape
        lanes = vector_lanes(target)
        if not is_static(shape):
            return Refused("the shape is dynamic")
        if not rows or constant_size(rows[-1:]) < lanes:
            return Refused(f"fewer adjacent rows than the {lanes} lanes of a vector")
        found = FlattenedRows(tuple(rows), constant_size([length]), lanes, target)
        return found if found.length <= most else Refused(f"rows of {found.length} elements exceed {most}")

    def of_results(self, out: te.Tensor, times: int) -> FlattenedRows:
        """Take as many lines as fill whole cache lines of results, times `times`, if stores are non-temporal."""
        together = times * rows_of_whole_lines(self.lanes * self.length * out.dtype.nbytes)
        enough = constant_size(self.rows[-1:]) >= together * self.lanes
        return replace(self, together=together) if enough and is_beyond_caches(out, self.target) else self

    @property
    def count(self) -> int:
        """Rows taken together: `lanes` for each line."""
        return self.together * self.lanes

    def by_lanes(
        self, element: Callable[..., PrimExpr], reduction: Callable[..., PrimExpr], name: str
    ) -> tuple[te.Tensor, te.Tensor]:
        """Reduce rows; returns the result and the partial results per lane of vectors that start at each row."""
        rows, lanes, length = self.rows, self.lanes, self.length
        j, lane = te.reduce_axis((0, -(-length // lanes)), name="j"), te.reduce_axis((0, lanes), name="lane")
        nothing = te.const(0.0, "float32") if reduction is te.sum else te.min_value("float32")

        def of_lane(*i: Any) -> PrimExpr:
            column = j * lanes + i[-1]
            value = element(*i[:-1], column)
            return reduction(value if length % lanes == 0 else te.if_then_else(column < length, value, nothing), axis=j)

        partial = te.compute((*rows, lanes), of_lane, name=f"{name}.lanes")
        return te.compute(rows, lambda *i: reduction(partial(*i, lane), axis=lane), name=name), partial

    def apply(
        self, s: te.Schedule, exponentials: te.Tensor, sums: te.Tensor, *fallback: tuple[te.Tensor, te.Tensor],
        along: bool, only_summed: bool,
    ) -> None:  # fmt: skip
        """Compute `exponentials` of a group of rows as one line, and their `sums` in registers, line by line.

        `along`: inputs are read in memory order and shared by no rows; otherwise rows are vectorised one by one. Where
        they are `only_summed`, exponentials are computed for each line. Reductions by lanes, the `fallback` of failed
        speculation, go row by row.
        """
        self._compute(s, exponentials, along)
        lines, rows = s[sums].split(s[sums].op.axis[-1], nparts=self.together)
        s[sums].tensorize(rows, sum_rows(self.lanes, self.length, len(sums.shape), str(sums.dtype)))
        if only_summed:
            attach(s, exponentials, sums, lines)
        for tensor, of_lanes in fallback:
            attach(s, of_lanes, tensor, s[tensor].op.axis[-1])
            reduce_by_vectors(s, of_lanes)

    def _compute(self, s: te.Schedule, exponentials: te.Tensor, along: bool) -> None:
        """Vectorise exponentials, prefetching later rows."""
        *_, row, column = s[exponentials].op.axis
        shape, elements = exponentials.shape, self.count * self.length
        if not along:
            vectors = vectorize_elements(s, exponentials, column, self.length, self.lanes)
            prefetch_rows(s, exponentials, vectors, constant_size(shape), elements, self.target, always=True)
            return
        vectors = vectorize_elements(s, exponentials, s[exponentials].fuse(row, column), elements, self.lanes)
        for tensor in inputs_of(s[exponentials].op):
            if is_streamed(tensor, elements, self.target):
                wanted = in_sequence(tensor, self.target, elements)
                prefetch_places(s, exponentials, tensor, vectors, wanted, elements_per_step(elements, self.lanes))
