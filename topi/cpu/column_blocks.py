"""Column blocks: a few cache lines of each row along a strided axis, the passes of stages over them, their prefetch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from relayc import te
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.prefetch import LINE_BYTES, PAGE_BYTES, is_beyond_caches
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, has_gaps
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["ColumnPlan", "Columns", "Loops", "StagePass", "prefetch_columns"]

_ROWS_TRIED, _MOST_OF_A_SET = 64, 6
"""Rows tried, and most of their lines that one set may hold without conflicts: it has eight ways, or twelve."""
_MOST_BLOCKS = 32
"""Most blocks that a thread works on one after the other; the first of them is not overlapped with another."""
_SHARES = 8
"""Parts of the work for each core, for load balance."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of `out`, its dimensions after the strided `axis`; a row has those of one index along the axis.

    Sizes, alignment and cache behaviour are computed once.
    """

    out: te.Tensor
    axis: int
    target: Target

    @cached_property
    def rows(self) -> int:
        """The length of the axis."""
        return constant_size(self.out.shape[self.axis : self.axis + 1])

    @cached_property
    def count(self) -> int:
        """Columns of a row."""
        return constant_size(self.out.shape[self.axis + 1 :])

    @cached_property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.count * self.out.dtype.nbytes

    @property
    def line(self) -> int:
        """Columns of a cache line."""
        return LINE_BYTES // self.out.dtype.nbytes

    @cached_property
    def are_whole_lines(self) -> bool:
        """Whether every row begins on a cache line."""
        return self.row_bytes % LINE_BYTES == 0

    @cached_property
    def are_stored_by_lines(self) -> bool:
        """Whether `out` exceeds the caches and can be stored by whole lines, perhaps by blocks aligned to them."""
        if not is_beyond_caches(self.out, self.target):
            return False
        return self.are_whole_lines or not has_gaps(self.out)

    @cached_property
    def have_set_conflicts(self) -> bool:
        """Whether cache lines of adjacent rows conflict in cache sets, so that few of them stay there.

        They do where rows are whole pages apart, and where they nearly are (planes of 513 x 513).
        """
        rows = min(self.rows, _ROWS_TRIED)
        sets = Counter(row * self.row_bytes % PAGE_BYTES // LINE_BYTES for row in range(rows))
        return max(sets.values(), default=0) > _MOST_OF_A_SET


class Loops(NamedTuple):
    """The loops of a stage over the rows of a block and over the vectors of a row."""

    rows: te.IterVar
    vectors: te.IterVar


@dataclass(frozen=True)
class StagePass:
    """A pass of `stage` over the rows of a block: `width` columns at a time, of which vectors or rows are unrolled.

    All columns of a row come before the next row or, with `block`, all rows of so many columns before the next columns.
    `fused`: the loop that it shares with the passes beside it.
    """

    stage: te.Tensor
    width: int
    block: int = 0
    unroll: Literal["", "vectors", "rows"] = ""
    fused: te.IterVar | None = None

    def apply(self, s: te.Schedule) -> Loops:
        """Order and vectorise the loops of the stage."""
        stage = s[self.stage]
        *data, column = stage.op.axis
        rows = list(stage.op.reduce_axis)
        if not rows:
            data, rows = data[:-1], data[-1:]
        if self.block:
            blocks, column = stage.split(column, factor=self.block)
            data.append(blocks)
        vectors, lane = stage.split(column, factor=self.width)
        stage.reorder(*data, *rows, vectors, lane)
        if self.unroll == "vectors":
            stage.unroll(vectors)
        elif self.unroll == "rows" and rows:
            stage.unroll(rows[-1])
        stage.vectorize(lane)
        if self.fused is not None:
            stage.pragma(self.fused, "fuse_with_next")
        return Loops(rows[-1] if rows else vectors, vectors)


@dataclass(frozen=True)
class ColumnPlan:
    """Blocks of `width` columns of each row, stored `vector` at a time; parts of several blocks are parallel.

    The next block is first read while the results of one are stored (software pipelining): arithmetic of neither waits
    for memory. The results of `unrolled` rows are stored by one iteration. `aligned`: blocks begin on cache lines
    though rows do not, for non-temporal stores by lines; a block then also computes the line that it shares with the
    next one (see `te.Stage.split_lines`).
    """

    width: int
    vector: int
    unrolled: int = 0
    aligned: bool = False

    def apply(
        self, s: te.Schedule, columns: Columns, passes: Sequence[StagePass], work: float
    ) -> tuple[te.IterVar, dict[te.Tensor, Loops]]:
        """Run `passes` over each block and store its results; returns the loop over blocks, and those of all passes."""
        out, axis = columns.out, columns.axis
        outer, last = s[out].op.axis[: axis + 1], s[out].fuse(*s[out].op.axis[axis + 1 :])
        if self.aligned:
            tile, vectors, column = s[out].split_lines(self.step(columns), columns.line)
            part, block = s[out].split(tile, factor=self._blocks_of_a_part(columns), tail="shift")
            s[out].unroll(vectors)
        else:
            part, within = s[out].split(last, factor=self._blocks_of_a_part(columns) * self.width, tail="shift")
            block, within = s[out].split(within, factor=self.width)
            vectors, column = s[out].split(within, factor=self.vector)
        s[out].reorder(*outer[:axis], part, block, outer[axis], vectors, column)
        s[out].vectorize(column)
        s[out].pragma(block, "overlap_iterations")
        parallel(s, out, s[out].fuse(*outer[:axis], part), work, vector_lanes(columns.target))
        row = outer[axis]
        if self.unrolled:
            _, row = s[out].split(row, factor=self.unrolled)
            s[out].unroll(row)
        for each in passes:
            s[each.stage].compute_at(s[out], block)
        return block, {out: Loops(row, vectors), **{each.stage: each.apply(s) for each in passes}}

    def step(self, columns: Columns) -> int:
        """Columns from the beginning of one block to that of the next."""
        return self.width - columns.line if self.aligned else self.width

    def _blocks_of_a_part(self, columns: Columns) -> int:
        blocks = columns.count // self.step(columns)
        share = constant_size(columns.out.shape[: columns.axis]) * blocks // (_SHARES * columns.target.num_cores)
        parts = -(-blocks // max(2, min(_MOST_BLOCKS, share)))
        return max(2, -(-blocks // parts))


def prefetch_columns(
    s: te.Schedule, columns: Columns, stage: te.Tensor, loop: te.IterVar, width: int, ahead: int, rows: int = 0
) -> None:
    """Prefetch in each iteration of `loop` `width` columns that will be read and written, those `ahead` in the row.

    With `rows`, those of a row so much later, and only past the last row those `ahead`, in the next block; where rows
    are unaligned, only the cache line at a block's end is new. Only inputs of the results' shape are prefetched: others
    are small. They may be read by earlier stages.
    """
    out, axis, shape = columns.out, columns.axis, tuple(columns.out.shape)
    read = [op.output(0) for op in operations_behind([s[stage].op.output(0)]) if isinstance(op, te.PlaceholderOp)]
    end = columns.line - 1 if rows and not columns.are_whole_lines else 0

    def place(*i: Any) -> Sequence[Any]:
        if not rows:
            return (*i[: axis + 1], i[-1] + ahead)
        row = i[axis] + min(rows, columns.rows)
        over = row >= columns.rows
        column = te.select(over, i[-1] + (ahead + end), i[-1] + end)
        return (*i[:axis], te.select(over, row - columns.rows, row), column)

    for first in range(0, width, columns.line):
        for tensor in [t for t in read if tuple(t.shape) == shape]:
            s[stage].prefetch(tensor, loop, te.Prefetch(first, 2, place))
        s[stage].prefetch(out, loop, te.Prefetch(first, order=place, written=True))
