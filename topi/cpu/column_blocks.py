"""Column blocks: a few cache lines of each row along a strided axis, and their prefetch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.prefetch import LINE_BYTES, exceeds_all_caches, rows_ahead
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target

__all__ = [
    "Columns",
    "prefetch_column_blocks",
    "prefetch_columns",
    "split_by_lines",
    "split_into_column_blocks",
    "vectorize_columns",
]

_PAGE_BYTES = 4096
"""Addresses at this distance have the same set in an L1 cache, and few different ones in L2."""
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
    def are_static(self) -> bool:
        """Whether all dimensions are constant."""
        return all(isinstance(d, int) for d in self.out.shape)

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
        """Whether `out` exceeds the caches and is stored by whole lines, perhaps by `split_by_lines`."""
        if not exceeds_all_caches(constant_size(self.out.shape) * self.out.dtype.nbytes, self.target):
            return False
        return self.are_whole_lines or "memory_strides" not in self.out.op.attrs

    @cached_property
    def have_set_conflicts(self) -> bool:
        """Whether rows conflict in cache sets, so that few of their lines stay there."""
        return self.conflict_among(_ROWS_TRIED)

    def conflict_among(self, rows: int) -> bool:
        """Whether cache lines of `rows` adjacent rows conflict in cache sets.

        They do where rows are whole pages apart, and where they nearly are (planes of 513 x 513).
        """
        sets = Counter(row * self.row_bytes % _PAGE_BYTES // LINE_BYTES for row in range(min(self.rows, rows)))
        return max(sets.values(), default=0) > _MOST_OF_A_SET


def split_into_column_blocks(
    s: te.Schedule, columns: Columns, width: int, work: float
) -> tuple[te.IterVar, te.IterVar, te.IterVar]:
    """Split the columns into blocks of `width`; parts of several blocks are parallel.

    Returns the loop over blocks, the one over rows, and the one over the columns of a block. The next block is first
    read while the results of one are stored (software pipelining): arithmetic of neither waits for memory.
    """
    out, axis = columns.out, columns.axis
    outer, last = s[out].op.axis[: axis + 1], s[out].fuse(*s[out].op.axis[axis + 1 :])
    factor = _blocks_of_a_part(columns, width) * width
    part, within = s[out].split(last, factor=factor, tail="shift")
    block, column = s[out].split(within, factor=width)
    s[out].reorder(*outer[:axis], part, block, outer[axis], column)
    _overlap_blocks(s, columns, part, block, work)
    return block, outer[axis], column


def split_by_lines(
    s: te.Schedule, columns: Columns, width: int, work: float
) -> tuple[te.IterVar, te.IterVar]:
    """Split columns into cache-line-aligned blocks, which are written with non-temporal stores.

    Returns the loops over blocks and rows. A block, `width` columns with the line that it shares with the next one (see
    `te.Stage.split_lines`), is computed wholly.
    """
    out, axis, line = columns.out, columns.axis, columns.line
    outer = s[out].op.axis[: axis + 1]
    s[out].fuse(*s[out].op.axis[axis + 1 :])
    tile, each, column = s[out].split_lines(width - line, line)
    factor = _blocks_of_a_part(columns, width - line)
    part, block = s[out].split(tile, factor=factor, tail="shift")
    s[out].reorder(*outer[:axis], part, block, outer[axis], each, column)
    s[out].unroll(each)
    s[out].vectorize(column)
    _overlap_blocks(s, columns, part, block, work)
    return block, outer[axis]


def _blocks_of_a_part(columns: Columns, width: int) -> int:
    """Number of blocks of `width` columns in a part."""
    blocks = columns.count // width
    share = constant_size(columns.out.shape[: columns.axis]) * blocks // (_SHARES * columns.target.num_cores)
    parts = -(-blocks // max(2, min(_MOST_BLOCKS, share)))
    return max(2, -(-blocks // parts))


def _overlap_blocks(s: te.Schedule, columns: Columns, part: te.IterVar, block: te.IterVar, work: float) -> None:
    """Parallelise the parts, and overlap each block with the next one."""
    out, axis = columns.out, columns.axis
    s[out].pragma(block, "overlap_iterations")
    parallel(s, out, s[out].fuse(*s[out].op.axis[:axis], part), work, vector_lanes(columns.target))


def vectorize_columns(s: te.Schedule, tensor: te.Tensor, width: int, *, unroll: bool = False) -> te.IterVar:
    """Vectorise the last dimension of `tensor`, a strided axis being outside of it; returns the loop over vectors.

    A reduction goes row by row, over all columns of each.
    """
    *data, column = s[tensor].op.axis
    vectors, lane = s[tensor].split(column, factor=width)
    s[tensor].reorder(*data, *s[tensor].op.reduce_axis, vectors, lane)
    if unroll:
        s[tensor].unroll(vectors)
    s[tensor].vectorize(lane)
    return vectors


def prefetch_columns(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, columns: Columns, width: int,
    place: Callable[..., tuple[Any, Any]],
) -> None:  # fmt: skip
    """Prefetch in each iteration of `loop` `width` columns that will be read and written.

    ``place(*i)``: their row and first column, from the arguments of a `te.Prefetch`'s order. Only inputs of
    the results' shape are prefetched: others are small. They may be read by earlier stages.
    """
    out, axis, shape = columns.out, columns.axis, tuple(columns.out.shape)
    read = [op.output(0) for op in operations_behind([s[stage].op.output(0)]) if isinstance(op, te.PlaceholderOp)]

    def indices(*i: Any) -> Sequence[Any]:
        return (*i[:axis], *place(*i))

    for first in range(0, width, columns.line):
        for tensor in [t for t in read if tuple(t.shape) == shape]:
            s[stage].prefetch(tensor, loop, te.Prefetch(first, 2, indices))
        s[stage].prefetch(out, loop, te.Prefetch(first, order=indices, written=True))


def prefetch_column_blocks(
    s: te.Schedule, columns: Columns, stage: te.Tensor, loop: te.IterVar, nbytes: int
) -> None:
    """Prefetch, with each cache line in `loop` of `stage`, one of a row that is a memory latency ahead.

    It is of this block, of `nbytes` of each row, or of the next one.
    """
    rows, axis = columns.rows, columns.axis
    further = min(rows_ahead(nbytes), rows)
    shared = 0 if columns.are_whole_lines else columns.line  # columns that a block shares with the next one
    end, step = max(shared - 1, 0), nbytes // columns.out.dtype.nbytes - shared

    def place(*i: Any) -> tuple[Any, Any]:
        row, column = i[axis] + further, i[axis + 1] + end
        over = row >= rows
        return te.select(over, row - rows, row), te.select(over, column + step, column)

    prefetch_columns(s, stage, loop, columns, columns.line, place)
