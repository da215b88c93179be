"""Softmax of long rows along a strided axis: column blocks, by parts of a few rows that stay in L1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cpu.column_blocks import (
    Columns,
    prefetch_columns,
    split_by_lines,
    split_into_column_blocks,
)
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed, rows_ahead
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.softmax_parts import SoftmaxParts
from relayc.topi.unshifted_softmax import element_of

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["softmax_by_parts"]

_VECTORS = 4
"""Vectors of columns that are computed together, with their statistics in registers."""
_FEWEST_ROWS, _MOST_ROWS = 4, 32
"""Fewest and most rows of a part: each part costs one more exponential per column."""
_FLOAT_BYTES = 4


def softmax_by_parts(
    s: te.Schedule, anchor: te.Operation, largest: te.ComputeOp, keep: bool, work: float, target: Target
) -> None:
    """Compute `anchor`, a softmax along its last dimension but one, by column blocks and parts of rows.

    `largest` is its stage for row maxima; `keep`: what that reads is stored for the other passes.
    """
    shape = anchor.output(0).shape
    axis = len(shape) - 2
    sizes = tuple([constant_size([d]) for d in shape])
    lines, most = _block_and_part(Columns(s.outputs[0].output(0), axis, target))
    element, size = element_of(largest, axis), _rows_of_a_part(sizes[axis], most)
    parts = SoftmaxParts(element, sizes, size, anchor.output(0).dtype, keep=keep)
    s.recompute(anchor.output(0), parts.result)
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    stages = (*_passes(parts), parts.largest, parts.power, parts.total, parts.share)
    inline_injective(s, [out], keep=[t.op for t in stages])
    block = _VECTORS * lanes
    width = -(-lines * LINE_BYTES // out.dtype.nbytes // block) * block
    columns = Columns(out, axis, target)
    note("block", "parts of rows", columns=width, rows_of_a_part=parts.size)
    if columns.are_stored_by_lines and not columns.are_whole_lines:
        block_loop, row = split_by_lines(s, columns, width, work)
        width -= LINE_BYTES // out.dtype.nbytes  # the step from block to block
    else:
        block_loop, row, column = split_into_column_blocks(s, columns, width, work)
        _, lane = s[out].split(column, factor=block)
        s[out].vectorize(lane)
    s[out].split(row, factor=parts.size)
    by_rows, loops = _interleaves_rows(columns), dict[te.Tensor, te.IterVar]()
    for tensor in stages:
        s[tensor].compute_at(s[out], block_loop)
        loops[tensor] = _vectorize(s, tensor, lanes, by_rows=by_rows)
    for tensor in _passes(parts):
        s[tensor].pragma(tensor.op.axis[axis], "fuse_with_next")
    if is_streamed(out, width, target):
        busy = parts.values or parts.exponentials
        _prefetch_rows(s, columns, parts, (width, block), loops[busy], busy)


def _passes(parts: SoftmaxParts) -> list[te.Tensor]:
    """Return the stages that are computed for a part of the rows before the next part."""
    first = [] if parts.values is None else [parts.values]
    return [*first, parts.largest_of_part, parts.exponentials, parts.sum_of_part]


def _block_and_part(columns: Columns) -> tuple[int, int]:
    """Return the cache lines of each row in a column block, and the most rows of a part.

    Blocks are wider where L1 can't hold their exponentials anyway, where cache-set conflicts leave room for few rows,
    and where rows of results are not whole cache lines: stores can't be non-temporal, or a line is computed twice.
    """
    if columns.conflict_among(_MOST_ROWS):
        return 8, 10
    if not columns.are_whole_lines:
        return (8, 16) if columns.are_stored_by_lines else (16, 16)
    kept = 2 * LINE_BYTES * columns.rows
    return 2 if kept <= columns.target.cache_bytes.l1 else 4, _MOST_ROWS


def _interleaves_rows(columns: Columns) -> bool:
    """True if exponentials are computed row by row, each replacing results of the block before, stored beside it.

    Memory reads and writes overlap then. Where vectors are shorter than a cache line the kernel is compute-bound, and
    register spills cost more than that gains, unless rows have cache-set conflicts.
    """
    return vector_lanes(columns.target) * _FLOAT_BYTES >= LINE_BYTES or columns.conflict_among(_MOST_ROWS)


def _rows_of_a_part(rows: int, most: int) -> int:
    return max([n for n in range(_FEWEST_ROWS, most + 1) if rows % n == 0], default=most)


def _vectorize(s: te.Schedule, tensor: te.Tensor, lanes: int, *, by_rows: bool) -> te.IterVar:
    """Vectorise a few vectors of columns together: all rows of them before the next, or all of a row if `by_rows`.

    Reductions always take the former order. Returns the loop around single vector instructions.
    """
    *data, column = s[tensor].op.axis
    block, column = s[tensor].split(column, factor=_VECTORS * lanes)
    if not s[tensor].op.reduce_axis:
        *data, row = data
        if not by_rows:
            s[tensor].reorder(*data, block, row, column)
        s[tensor].vectorize(column)
        return block if by_rows else row
    *_, row = s[tensor].op.reduce_axis
    vectors, lane = s[tensor].split(column, factor=lanes)
    s[tensor].reorder(*data, block, row, vectors, lane)
    s[tensor].unroll(vectors)
    s[tensor].vectorize(lane)
    return row


def _prefetch_rows(
    s: te.Schedule, columns: Columns, parts: SoftmaxParts, sizes: tuple[int, int], loop: te.IterVar, busy: te.Tensor
) -> None:
    """Prefetch what will be read and written, of this column block or the next, in the arithmetic of stage `busy`.

    Each iteration of `loop` covers some columns of a row; `sizes` are the columns of a block and of an iteration. A
    part is first read before its exponentials, so the prefetch distance is longer by half a part than latency needs.
    Where rows are unaligned, only the cache line at a block's end is new.
    """
    (width, block), axis, rows = sizes, parts.axis, parts.rows
    end = 0 if columns.are_whole_lines else columns.line - 1
    further = min(parts.size // 2 + rows_ahead(width * columns.out.dtype.nbytes), rows)

    def ahead(*i: Any) -> tuple[Any, Any]:
        row = i[axis] * parts.size + i[axis + 1] + further
        over = row >= rows
        return te.select(over, row - rows, row), te.select(over, i[-1] + (width + end), i[-1] + end)

    prefetch_columns(s, busy, loop, columns, block, ahead)
