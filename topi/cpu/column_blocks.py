"""Column blocks: a few cache lines of each row along a strided axis, and their prefetch."""

from __future__ import annotations

from collections import Counter
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
    "are_stored_by_lines",
    "are_whole_lines",
    "have_set_conflicts",
    "prefetch_column_blocks",
    "prefetch_columns",
    "split_by_lines",
    "split_into_column_blocks",
]

_PAGE_BYTES = 4096
"""Addresses at this distance have the same set in an L1 cache, and few different ones in L2."""
_ROWS_TRIED, _MOST_OF_A_SET = 64, 6
"""Rows tried, and most of their lines that one set may hold without conflicts: it has eight ways, or twelve."""
_MOST_BLOCKS = 32
"""Most blocks that a thread works on one after the other; the first of them is not overlapped with another."""
_SHARES = 8
"""Parts of the work for each core, for load balance."""


def have_set_conflicts(out: te.Tensor, axis: int, rows: int = _ROWS_TRIED) -> bool:
    """Whether cache lines of `rows` neighbours along `axis` conflict in cache sets, so that few stay there.

    They do where neighbours are whole pages apart, and where they nearly are (planes of 513 x 513).
    """
    apart, length = constant_size(out.shape[axis + 1 :]) * out.dtype.nbytes, constant_size(out.shape[axis : axis + 1])
    sets = Counter(row * apart % _PAGE_BYTES // LINE_BYTES for row in range(min(length, rows)))
    return max(sets.values(), default=0) > _MOST_OF_A_SET


def are_whole_lines(out: te.Tensor, axis: int) -> bool:
    """Whether the columns at every index along `axis` begin on a cache line."""
    return constant_size(out.shape[axis + 1 :]) * out.dtype.nbytes % LINE_BYTES == 0


def are_stored_by_lines(out: te.Tensor, axis: int, target: Target) -> bool:
    """Whether `out` exceeds the caches and is stored by whole lines, perhaps by `split_by_lines`."""
    if not exceeds_all_caches(constant_size(out.shape) * out.dtype.nbytes, target):
        return False
    return are_whole_lines(out, axis) or "memory_strides" not in out.op.attrs


def split_into_column_blocks(
    s: te.Schedule, out: te.Tensor, axis: int, width: int, work: float, target: Target
) -> tuple[te.IterVar, te.IterVar, te.IterVar]:
    """Split the columns, the dimensions after `axis`, into blocks of `width`; parts of several blocks are parallel.

    Returns the loop over blocks, the one over rows, and the one over the columns of a block. The next block is first
    read while the results of one are stored (software pipelining): arithmetic of neither waits for memory.
    """
    outer, last = s[out].op.axis[: axis + 1], s[out].fuse(*s[out].op.axis[axis + 1 :])
    factor = _blocks_of_a_part(out, axis, width, target) * width
    part, within = s[out].split(last, factor=factor, tail="shift")
    block, column = s[out].split(within, factor=width)
    s[out].reorder(*outer[:axis], part, block, outer[axis], column)
    _overlap_blocks(s, out, axis, part, block, work, target)
    return block, outer[axis], column


def split_by_lines(
    s: te.Schedule, out: te.Tensor, axis: int, width: int, work: float, target: Target
) -> tuple[te.IterVar, te.IterVar]:
    """Split columns into cache-line-aligned blocks, which are written with non-temporal stores.

    Returns the loops over blocks and rows. A block, `width` columns with the line that it shares with the next one (see
    `te.Stage.split_lines`), is computed wholly.
    """
    outer, line = s[out].op.axis[: axis + 1], LINE_BYTES // out.dtype.nbytes
    s[out].fuse(*s[out].op.axis[axis + 1 :])
    tile, each, column = s[out].split_lines(width - line, line)
    factor = _blocks_of_a_part(out, axis, width - line, target)
    part, block = s[out].split(tile, factor=factor, tail="shift")
    s[out].reorder(*outer[:axis], part, block, outer[axis], each, column)
    s[out].unroll(each)
    s[out].vectorize(column)
    _overlap_blocks(s, out, axis, part, block, work, target)
    return block, outer[axis]


def _blocks_of_a_part(out: te.Tensor, axis: int, width: int, target: Target) -> int:
    """Number of blocks of `width` columns in a part."""
    blocks = constant_size(out.shape[axis + 1 :]) // width
    share = constant_size(out.shape[:axis]) * blocks // (_SHARES * target.num_cores)
    parts = -(-blocks // max(2, min(_MOST_BLOCKS, share)))
    return max(2, -(-blocks // parts))


def _overlap_blocks(
    s: te.Schedule, out: te.Tensor, axis: int, part: te.IterVar, block: te.IterVar, work: float, target: Target
) -> None:
    """Parallelise the parts, and overlap each block with the next one."""
    s[out].pragma(block, "overlap_iterations")
    parallel(s, out, s[out].fuse(*s[out].op.axis[:axis], part), work, vector_lanes(target))


def prefetch_columns(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, out: te.Tensor, axis: int, width: int,
    place: Callable[..., tuple[Any, Any]],
) -> None:  # fmt: skip
    """Prefetch in each iteration of `loop` `width` columns that will be read and written.

    ``place(*i)``: their row and first column, from the arguments of a `Stage.prefetch_line` callback. Only inputs of
    the results' shape are prefetched: others are small. They may be read by earlier stages.
    """
    line, shape = LINE_BYTES // out.dtype.nbytes, tuple(out.shape)
    read = [op.output(0) for op in operations_behind([s[stage].op.output(0)]) if isinstance(op, te.PlaceholderOp)]

    def further(by: int) -> Callable[..., Sequence[Any]]:
        def indices(*i: Any) -> Sequence[Any]:
            row, column = place(*i)
            return (*i[:axis], row, column + by)

        return indices

    for first in range(0, width, line):
        for tensor in [t for t in read if tuple(t.shape) == shape]:
            s[stage].prefetch_line(tensor, loop, further(first), to_l1=False)
        s[stage].prefetch_line(out, loop, further(first), written=True)


def prefetch_column_blocks(
    s: te.Schedule, out: te.Tensor, stage: te.Tensor, loop: te.IterVar, axis: int, nbytes: int
) -> None:  # fmt: skip
    """Prefetch, with each cache line in `loop` of `stage`, one of a row that is a memory latency ahead.

    It is of this block, of `nbytes` of each row, or of the next one.
    """
    rows, line = constant_size(stage.shape[axis : axis + 1]), LINE_BYTES // out.dtype.nbytes
    further = min(rows_ahead(nbytes), rows)
    shared = 0 if are_whole_lines(out, axis) else line  # columns that a block shares with the next one
    end, step = max(shared - 1, 0), nbytes // out.dtype.nbytes - shared

    def place(*i: Any) -> tuple[Any, Any]:
        row, column = i[axis] + further, i[axis + 1] + end
        over = row >= rows
        return te.select(over, row - rows, row), te.select(over, column + step, column)

    prefetch_columns(s, stage, loop, out, axis, line, place)
