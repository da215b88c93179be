"""Softmax of long rows across memory: strips of columns, a few rows at a time while the first-level cache has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.topi.cpu.column_blocks import (
    are_stored_by_lines,
    are_whole_lines,
    have_set_conflicts,
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
"""Of columns that are worked on together: their statistics stay in registers."""
_FEWEST_ROWS, _MOST_ROWS = 4, 32
"""Of a part: for each there is one exponential more."""
_FLOAT_BYTES = 4


def softmax_by_parts(
    s: te.Schedule, anchor: te.Operation, largest: te.ComputeOp, keep: bool, work: float, target: Target
) -> None:
    """Compute `anchor`, a softmax along its last dimension but one, by parts of rows, strips of columns at a time.

    `largest` is its stage for the largest number of a row; `keep` what that reads for the other passes.
    """
    shape = anchor.output(0).shape
    axis = len(shape) - 2
    sizes = tuple([constant_size([d]) for d in shape])
    lines, most = _strip(s.outputs[0].output(0), axis, target)
    element, size = element_of(largest, axis), _rows_of_a_part(sizes[axis], most)
    parts = SoftmaxParts(element, sizes, size, anchor.output(0).dtype, keep=keep)
    s.recompute(anchor.output(0), parts.result)
    out, lanes = s.outputs[0].output(0), vector_lanes(target)
    stages = (*_passes(parts), parts.largest, parts.power, parts.total, parts.share)
    inline_injective(s, [out], keep=[t.op for t in stages])
    block = _VECTORS * lanes
    width = -(-lines * LINE_BYTES // out.dtype.nbytes // block) * block
    if are_stored_by_lines(out, axis, target) and not are_whole_lines(out, axis):
        strip, row = split_by_lines(s, out, axis, width, work, target)
        width -= LINE_BYTES // out.dtype.nbytes  # from strip to strip
    else:
        strip, row, column = split_into_column_blocks(s, out, axis, width, work, target)
        _, lane = s[out].split(column, factor=block)
        s[out].vectorize(lane)
    s[out].split(row, factor=parts.size)
    by_rows, loops = _go_by_rows(out, axis, target), dict[te.Tensor, te.IterVar]()
    for tensor in stages:
        s[tensor].compute_at(s[out], strip)
        loops[tensor] = _vectorize(s, tensor, lanes, by_rows=by_rows)
    for tensor in _passes(parts):
        s[tensor].pragma(tensor.op.axis[axis], "fuse_with_next")
    if is_streamed(out, width, target):
        busy = parts.values or parts.exponentials
        _prefetch_rows(s, out, parts, (width, block), loops[busy], busy)


def _passes(parts: SoftmaxParts) -> list[te.Tensor]:
    """What is done for a part of the rows before the next one."""
    first = [] if parts.values is None else [parts.values]
    return [*first, parts.largest_of_part, parts.exponentials, parts.sum_of_part]


def _strip(out: te.Tensor, axis: int, target: Target) -> tuple[int, int]:
    """Cache lines of each row in a strip, and the most rows of a part.

    Exponentials of a strip that the first-level cache does not hold may as well be more. Few rows that share sets fit
    in the caches. Memory is read in longer pieces then, and where lines of the result can't be stored past the caches,
    or one of them is computed twice.
    """
    if have_set_conflicts(out, axis, _MOST_ROWS):
        return 8, 10
    if not are_whole_lines(out, axis):
        return (8, 16) if are_stored_by_lines(out, axis, target) else (16, 16)
    kept = 2 * LINE_BYTES * constant_size(out.shape[axis : axis + 1])
    return 2 if kept <= target.cache_bytes.l1 else 4, _MOST_ROWS


def _go_by_rows(out: te.Tensor, axis: int, target: Target) -> bool:
    """Are exponentials found row by row, beside each the results of the strip before that it takes the place of?

    Memory has to read and to store all the time then. Where vectors are parts of cache lines arithmetic binds, and
    more values than there are registers for cost more than that gains, unless rows share sets of the caches.
    """
    return vector_lanes(target) * _FLOAT_BYTES >= LINE_BYTES or have_set_conflicts(out, axis, _MOST_ROWS)


def _rows_of_a_part(rows: int, most: int) -> int:
    return max([n for n in range(_FEWEST_ROWS, most + 1) if rows % n == 0], default=most)


def _vectorize(s: te.Schedule, tensor: te.Tensor, lanes: int, *, by_rows: bool) -> te.IterVar:
    """A few vectors of columns together: all rows of them before the next ones, or, `by_rows`, all of a row.

    Where rows are reduced, the former always. Returns the loop around what is one instruction each.
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
    s: te.Schedule, out: te.Tensor, parts: SoftmaxParts, sizes: tuple[int, int], loop: te.IterVar, busy: te.Tensor
) -> None:
    """Ask for what will be read and written while `busy` has arithmetic: rows of this strip or the next one's.

    In `loop` a block of columns of each; `sizes` are those of a strip and of a block. A part is read for the first
    time before its exponentials are found: what is asked for lies further ahead by half of one than memory needs.
    Where rows begin anywhere a strip's last line is the one that is new.
    """
    (width, block), axis, rows = sizes, parts.axis, parts.rows
    end = 0 if are_whole_lines(out, axis) else LINE_BYTES // out.dtype.nbytes - 1
    further = min(parts.size // 2 + rows_ahead(width * out.dtype.nbytes), rows)

    def ahead(*i: Any) -> tuple[Any, Any]:
        row = i[axis] * parts.size + i[axis + 1] + further
        over = row >= rows
        return te.select(over, row - rows, row), te.select(over, i[-1] + (width + end), i[-1] + end)

    prefetch_columns(s, busy, loop, out, axis, block, ahead)
