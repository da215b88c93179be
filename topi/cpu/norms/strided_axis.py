"""Softmax and normalisations along a strided axis on CPUs: adjacent columns together, as blocks of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, first_of, note, serves_if
from relayc.topi.cpu.column_blocks import (
    Columns,
    prefetch_columns,
    split_into_column_blocks,
)
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.norms.collapsed_columns import collapse_columns
from relayc.topi.cpu.norms.copied_blocks import is_worth_copying, schedule_copied_blocks, with_cached_input
from relayc.topi.cpu.norms.facts import RowFacts, elements_of, uses_reduction
from relayc.topi.cpu.norms.softmax_parts import softmax_by_parts
from relayc.topi.cpu.norms.unshifted_blocks import unshifted_block_lines, unshifted_softmax_in_blocks
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed
from relayc.topi.cpu.reductions.lines import add_up_in_registers, add_up_lines, lines_per_step
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["schedule_strided_axis"]

_FEWEST_ROWS_OF_PARTS = 40
_LEAST_BYTES_OF_PARTS = 2048
"""Least rows, and bytes of columns, that are worth splitting into parts: smaller ones have too much overhead."""
_OTHER_REGISTERS = 8
"""Vector registers for the exponential of a vector, its maximum and its sum."""
_BLOCKS_AHEAD = 4
"""Prefetch distance in column blocks, for reads and writes: a longer one evicts data still in use."""


def schedule_strided_axis(rows: RowFacts) -> te.Schedule:
    """Schedule rows along a strided axis: blocks of adjacent columns, over whose lines every stage passes."""
    s, (axis, *_), target = rows.create_schedule(), rows.axes, rows.target
    few = _fits_in_registers(Columns(rows.out, axis, target), _stages_around(rows)[0])
    copied = Refused("registers hold a column of every row") if few else is_worth_copying(rows)
    anchor = with_cached_input(s, rows) if copied else rows.anchor
    anchor = collapse_columns(s, anchor, axis, [elements_of(anchor).op] if copied else [])
    collapsed = len(anchor.axis) == axis + 2
    copy = elements_of(anchor) if copied and collapsed else None
    columns = Columns(s.outputs[0].output(0), axis, target)
    out = columns.out
    before, behind = _stages_around(RowFacts([out], anchor, target, rows.axes))
    inline_injective(s, [out], keep=[anchor, *before, *([] if copy is None else [copy.op])])
    for op in behind:
        if op is not out.op:
            s[op].compute_inline()
    work = constant_size(out.shape) * element_cost([*before, *behind])
    largest = next((op for op in before if op.tag == "softmax_max"), None)
    apart = Refused("columns span dimensions that are not contiguous in all stages")

    def by_parts() -> Serves | Refused:
        if not collapsed:
            return apart
        if largest is None or anchor.attrs.get("log"):
            return Refused("no softmax, or its logarithm")
        worth = _is_worth_parts(columns)
        if not worth:
            return worth
        kept = any(not uses_reduction(op) for op in before)
        if lines := unshifted_block_lines(columns):
            unshifted_softmax_in_blocks(s, anchor, lines, work, target)
        else:
            softmax_by_parts(s, anchor, largest, kept, work, target)
        return True

    def in_copied_blocks() -> Serves | Refused:
        if copy is None:
            return apart if copied else copied
        schedule_copied_blocks(s, columns, copy, before, work)
        return True

    def in_registers() -> Serves | Refused:
        fits = few if collapsed else apart
        if fits:
            _schedule_in_registers(s, columns, before, work)
        return fits

    def in_column_blocks() -> Serves | Refused:
        fits = _fits_in_blocks(columns) if collapsed else apart
        if fits:
            _schedule_column_blocks(s, columns, before, work)
        return fits

    def in_blocks() -> Serves:
        _schedule_blocks(s, columns, s[out].op.axis[axis + 1 if collapsed else -1 :], before, work)
        return True

    first_of("columns", (
        ("parts of rows", by_parts), ("copied blocks", in_copied_blocks), ("registers", in_registers),
        ("cache lines of every row", in_column_blocks), ("blocks", in_blocks),
    ))  # fmt: skip
    return s


def _stages_around(rows: RowFacts) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """Return the stages computed once per row in front of the anchor, and the anchor with all that read it."""
    (before, behind), kept = rows.around, rows.kept(in_l1=False)
    return [op for op in before if uses_reduction(op) or op in kept], behind


def _is_worth_parts(columns: Columns) -> Serves | Refused:
    """True if splitting rows into parts pays: column blocks exceed the caches, or the results use non-temporal stores.

    Column blocks of other types than float32 are bound by conversions or float64 arithmetic, not by a second pass.
    """
    nbytes, rank = columns.out.dtype.nbytes, len(columns.out.shape)
    if not columns.are_static:
        return Refused("the shape is dynamic")
    if columns.rows < _FEWEST_ROWS_OF_PARTS or columns.row_bytes < _LEAST_BYTES_OF_PARTS:
        least = f"{_FEWEST_ROWS_OF_PARTS} rows of {_LEAST_BYTES_OF_PARTS} bytes"
        return Refused(f"{columns.rows} rows of {columns.row_bytes} bytes; parts pay from {least} on")
    streamed = columns.are_stored_by_lines
    if rank > columns.axis + 2 and not columns.are_whole_lines:  # shorter vectors are compute-bound
        streamed = streamed and vector_lanes(columns.target) * nbytes >= LINE_BYTES
    if _fits_in_blocks(columns):
        pays = streamed and nbytes == 4
        return serves_if(pays, "L2 holds column blocks, and results are not float32 in non-temporal stores")
    return serves_if(streamed or not columns.have_set_conflicts, "rows have cache-set conflicts")


def _fits_in_registers(columns: Columns, before: list[te.ComputeOp]) -> Serves | Refused:
    """True if registers hold a vector for each element of a row, while cache-set conflicts keep caches from it.

    Vectors must be cache lines, with results in non-temporal stores. Kernels with more arithmetic than a softmax would
    unroll to too much code.
    """
    if not columns.are_static or not all(uses_reduction(op) for op in before):
        return Refused("the shape is dynamic, or values beside the statistics are kept")
    nbytes, most = columns.out.dtype.nbytes, columns.target.vector_registers - _OTHER_REGISTERS
    whole = columns.are_whole_lines and vector_lanes(columns.target) * nbytes == LINE_BYTES
    if nbytes != 4 or not whole or not columns.are_stored_by_lines:
        return Refused("vectors are no cache lines, or results are no whole cache lines in non-temporal stores")
    if columns.rows > most:
        return Refused(f"{columns.rows} rows exceed {most} registers")
    return serves_if(columns.have_set_conflicts, "rows have no cache-set conflicts: the caches hold them")


def _schedule_in_registers(s: te.Schedule, columns: Columns, before: list[te.ComputeOp], work: float) -> None:
    """Keep a vector for each element of a row in registers, so that memory is read once, whatever the caches hold."""
    out, axis, width = columns.out, columns.axis, columns.line
    block_loop, row, column = split_into_column_blocks(s, columns, width, work)
    s[out].unroll(row)
    s[out].vectorize(column)
    busy, line = out, row
    for op in before:
        result = op.output(0)
        s[result].compute_at(s[out], block_loop)
        *data, lane = op.axis
        s[result].vectorize(lane)
        if op.reduce_axis:
            s[result].reorder(*data, *op.reduce_axis, lane)
            s[result].unroll(op.reduce_axis[-1])
        elif len(op.axis) > axis + 1:
            busy, line = result, op.axis[axis]
            s[result].unroll(line)
    _prefetch_ahead(s, busy, line, columns, width, _BLOCKS_AHEAD * width)


def _fits_in_blocks(columns: Columns) -> Serves | Refused:
    """True if there are at least two column blocks, so small that L2 holds them and the next ones.

    False where all columns are one block in L2, already in order, and under cache-set conflicts along rows.
    """
    if not columns.are_static:
        return Refused("the shape is dynamic")
    width = _block_width(columns)
    if columns.count < 2 * width or _block_columns(columns, columns.count) == columns.count:
        return Refused(f"{columns.count} columns are fewer than two blocks, or one block in L2")
    kept, room = columns.rows * width * max(columns.out.dtype.nbytes, 4), columns.target.cache_bytes.l2 // 10
    if kept > room:
        return Refused(f"a block of {kept} bytes exceeds a tenth of L2, {room} bytes")
    return serves_if(not columns.have_set_conflicts, "rows have cache-set conflicts")


def _block_width(columns: Columns) -> int:
    """Columns of a block: whole cache lines of the result, at least two vectors."""
    return max(columns.line, 2 * vector_lanes(columns.target))


def _schedule_column_blocks(s: te.Schedule, columns: Columns, before: list[te.ComputeOp], work: float) -> None:
    """Compute a cache line of each row at a time: a column block stays in L1, its statistics in registers.

    Results of a block are stored while the next block is first read, so that neither's arithmetic waits for memory.
    """
    out, axis = columns.out, columns.axis
    lanes, width = vector_lanes(columns.target), _block_width(columns)
    note("block", "cache lines", columns=width)
    block_loop, row, column = split_into_column_blocks(s, columns, width, work)
    _, each = s[out].split(row, factor=lines_per_step(extent_of(row)))
    s[out].unroll(each)
    _vectorize_block(s, out, column, width)
    busy, row = out, each
    for op in before:
        result = op.output(0)
        if op.reduce_axis:
            for stage in add_up_in_registers(s, result, lanes):
                s[stage].compute_at(s[out], block_loop)
        else:
            s[result].compute_at(s[out], block_loop)
            _vectorize_block(s, result, op.axis[-1], width)
            busy, row = (result, op.axis[axis]) if len(op.axis) > axis + 1 else (busy, row)
    if is_streamed(out, width, columns.target):
        _prefetch_ahead(s, busy, row, columns, width, _BLOCKS_AHEAD * width)


def _prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, columns: Columns, width: int, ahead: int
) -> None:
    """Prefetch, in each iteration of `loop`, the `width` columns of a line that are read and written `ahead` later."""
    axis = columns.axis
    own = [constant_size([extent_of(a)]) for a in s[stage].op.axis[axis + 1 :]]

    def place(*i: Any) -> tuple[Any, Any]:
        return i[axis], ravel_index(i[axis + 1 : axis + 1 + len(own)], own) + ahead

    prefetch_columns(s, stage, loop, columns, width, place)


def _vectorize_block(s: te.Schedule, tensor: te.Tensor, column: te.IterVar, width: int) -> None:
    """Vectorise the columns of a block as one vector."""
    _, lane = s[tensor].split(column, factor=width)
    s[tensor].vectorize(lane)


def _schedule_blocks(
    s: te.Schedule, columns: Columns, axes: Sequence[te.IterVar], before: list[te.ComputeOp], work: float
) -> None:
    """Split the last dimensions `axes` into blocks that stay in L2, and run every stage block by block."""
    out, axis, target = columns.out, columns.axis, columns.target
    lanes, sizes = vector_lanes(target), [extent_of(a) for a in axes]
    outer = s[out].op.axis[: -len(axes)]
    known, block = all(isinstance(d, int) for d in sizes), _block_columns(columns, constant_size(sizes))
    note("block", "in L2", columns=block)
    part, within = s[out].split(s[out].fuse(*axes), factor=block, tail="shift" if known else "guard")
    s[out].reorder(*outer[:axis], *outer[axis + 1 :], part, outer[axis], within)
    group = s[out].fuse(*outer[:axis], *outer[axis + 1 :], part)
    parallel(s, out, group, work, lanes)
    vectorize_elements(s, out, within, block, lanes)
    for op in before:
        result = op.output(0)
        s[result].compute_at(s[out], group)
        if op.reduce_axis:
            add_up_lines(s, result, lanes)
        else:
            busy = vectorize_elements(s, result, op.axis[-1], block, lanes)
            if len(outer) == axis + 1 and known and block >= 4 * lanes and is_streamed(out, block, target):
                _prefetch_ahead(s, result, busy, columns, 2 * lanes, block)


def _block_columns(columns: Columns, count: int) -> int:
    """Return the columns of a block, which divides `count` of them as evenly as can be.

    A block is two cache lines of each row if what is read, kept, written and prefetched fits half of L1, else it takes
    an eighth of L2. Under cache-set conflicts, where few lines stay, it has 512 bytes of each row: these are finished
    quickly, and memory bandwidth is as good as for more.
    """
    nbytes, caches = max(columns.out.dtype.nbytes, 4), columns.target.cache_bytes
    line = LINE_BYTES // nbytes
    if columns.have_set_conflicts:
        most = 8 * line
    elif 4 * columns.rows * 2 * LINE_BYTES <= caches.l1 // 2:
        most = 2 * line
    else:
        most = max(caches.l2 // 8 // (columns.rows * nbytes), 4 * line)
    parts = -(-count // most)
    return min(-(-count // parts // line) * line, count)
