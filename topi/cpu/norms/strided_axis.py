"""Softmax and normalisations along a strided axis on CPUs: adjacent columns together, as blocks of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, first_of, serves_if
from relayc.topi.cpu.column_blocks import (
    are_stored_by_lines,
    are_whole_lines,
    have_set_conflicts,
    prefetch_columns,
    split_into_column_blocks,
)
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.norms.collapsed_columns import collapse_columns
from relayc.topi.cpu.norms.copied_blocks import is_worth_copying, schedule_copied_blocks, with_cached_input
from relayc.topi.cpu.norms.row_statistics import elements_of, is_worth_keeping, split_at, uses_reduction
from relayc.topi.cpu.norms.softmax_parts import softmax_by_parts
from relayc.topi.cpu.norms.unshifted_blocks import unshifted_block_lines, unshifted_softmax_in_blocks
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed
from relayc.topi.cpu.reductions.lines import add_up_in_registers, add_up_lines, lines_per_step
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import operations_behind
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_strided_axis"]

_FEWEST_ROWS_OF_PARTS = 40
_LEAST_BYTES_OF_PARTS = 2048
"""Least rows, and bytes of columns, that are worth splitting into parts: smaller ones have too much overhead."""
_OTHER_REGISTERS = 8
"""Vector registers for the exponential of a vector, its maximum and its sum."""
_BLOCKS_AHEAD = 4
"""Prefetch distance in column blocks, for reads and writes: a longer one evicts data still in use."""


def schedule_strided_axis(s: te.Schedule, outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule rows along a strided axis: blocks of adjacent columns, over whose lines every stage passes."""
    axis = int(anchor.attrs["axis"])
    few = _fits_in_registers(outs[0], axis, _stages_around(outs, anchor)[0], target)
    copied = Refused("registers hold a column of every row") if few else is_worth_copying(outs, anchor, target)
    if copied:
        anchor = with_cached_input(s, outs, anchor)
    anchor = collapse_columns(s, anchor, axis, [elements_of(anchor).op] if copied else [])
    collapsed = len(anchor.axis) == axis + 2
    copy = elements_of(anchor) if copied and collapsed else None
    out = s.outputs[0].output(0)
    before, behind = _stages_around([out], anchor)
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
        worth = _is_worth_parts(out, axis, target)
        if not worth:
            return worth
        kept = any(not uses_reduction(op) for op in before)
        if lines := unshifted_block_lines(out, axis, target):
            unshifted_softmax_in_blocks(s, anchor, lines, work, target)
        else:
            softmax_by_parts(s, anchor, largest, kept, work, target)
        return True

    def in_copied_blocks() -> Serves | Refused:
        if copy is None:
            return apart if copied else copied
        schedule_copied_blocks(s, out, axis, copy, before, work, target)
        return True

    def in_registers() -> Serves | Refused:
        fits = few if collapsed else apart
        if fits:
            _schedule_in_registers(s, out, axis, before, work, target)
        return fits

    def in_column_blocks() -> Serves | Refused:
        fits = _fits_in_blocks(out, axis, target) if collapsed else apart
        if fits:
            _schedule_column_blocks(s, out, axis, before, work, target)
        return fits

    def in_blocks() -> Serves:
        columns = s[out].op.axis[axis + 1 if collapsed else -1 :]
        _schedule_blocks(s, out, axis, columns, before, work, target)
        return True

    first_of("columns", (
        ("parts of rows", by_parts), ("copied blocks", in_copied_blocks), ("registers", in_registers),
        ("cache lines of every row", in_column_blocks), ("blocks", in_blocks),
    ))  # fmt: skip
    return s


def _stages_around(outs: list[te.Tensor], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """Return the stages computed once per row in front of the anchor, and the anchor with all that read it."""
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    before, behind = split_at(stages, anchor)
    return [op for op in before if uses_reduction(op) or is_worth_keeping(op, stages, anchor, in_l1=False)], behind


def _is_worth_parts(out: te.Tensor, axis: int, target: Target) -> Serves | Refused:
    """True if splitting rows into parts pays: column blocks exceed the caches, or the results use non-temporal stores.

    Column blocks of other types than float32 are bound by conversions or float64 arithmetic, not by a second pass.
    """
    if not all(isinstance(d, int) for d in out.shape):
        return Refused("the shape is dynamic")
    length, columns = constant_size(out.shape[axis : axis + 1]), constant_size(out.shape[axis + 1 :])
    if length < _FEWEST_ROWS_OF_PARTS or columns * out.dtype.nbytes < _LEAST_BYTES_OF_PARTS:
        least = f"{_FEWEST_ROWS_OF_PARTS} rows of {_LEAST_BYTES_OF_PARTS} bytes"
        return Refused(f"{length} rows of {columns * out.dtype.nbytes} bytes; parts pay from {least} on")
    streamed = are_stored_by_lines(out, axis, target)
    if len(out.shape) > axis + 2 and not are_whole_lines(out, axis):  # shorter vectors are compute-bound
        streamed = streamed and vector_lanes(target) * out.dtype.nbytes >= LINE_BYTES
    if _fits_in_blocks(out, axis, target):
        pays = streamed and out.dtype.nbytes == 4
        return serves_if(pays, "L2 holds column blocks, and results are not float32 in non-temporal stores")
    return serves_if(streamed or not have_set_conflicts(out, axis), "rows have cache-set conflicts")


def _fits_in_registers(
    out: te.Tensor, axis: int, before: list[te.ComputeOp], target: Target
) -> Serves | Refused:
    """True if registers hold a vector for each element of a row, while cache-set conflicts keep caches from it.

    Vectors must be cache lines, with results in non-temporal stores. Kernels with more arithmetic than a softmax would
    unroll to too much code.
    """
    if not all(isinstance(d, int) for d in out.shape) or not all(uses_reduction(op) for op in before):
        return Refused("the shape is dynamic, or values beside the statistics are kept")
    length, line = constant_size(out.shape[axis : axis + 1]), vector_lanes(target) * out.dtype.nbytes == LINE_BYTES
    streamed = out.dtype.nbytes == 4 and are_whole_lines(out, axis) and are_stored_by_lines(out, axis, target)
    if not line or not streamed:
        return Refused("vectors are no cache lines, or results are no whole cache lines in non-temporal stores")
    if length > target.vector_registers - _OTHER_REGISTERS:
        return Refused(f"{length} rows exceed {target.vector_registers - _OTHER_REGISTERS} registers")
    return serves_if(have_set_conflicts(out, axis), "rows have no cache-set conflicts: the caches hold them")


def _schedule_in_registers(
    s: te.Schedule, out: te.Tensor, axis: int, before: list[te.ComputeOp], work: float, target: Target
) -> None:
    """Keep a vector for each element of a row in registers, so that memory is read once, whatever the caches hold."""
    width = LINE_BYTES // out.dtype.nbytes
    block_loop, row, column = split_into_column_blocks(s, out, axis, width, work, target)
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
    _prefetch_ahead(s, busy, line, out, axis, width, _BLOCKS_AHEAD * width)


def _fits_in_blocks(out: te.Tensor, axis: int, target: Target) -> Serves | Refused:
    """True if there are at least two column blocks, so small that L2 holds them and the next ones.

    False where all columns are one block in L2, already in order, and under cache-set conflicts along rows.
    """
    if not all(isinstance(d, int) for d in out.shape):
        return Refused("the shape is dynamic")
    columns, length = constant_size(out.shape[axis + 1 :]), constant_size(out.shape[axis : axis + 1])
    width = _block_width(out, target)
    if columns < 2 * width or _block_columns(out, axis, columns, target) == columns:
        return Refused(f"{columns} columns are fewer than two blocks, or one block in L2")
    kept, room = length * width * max(out.dtype.nbytes, 4), target.cache_bytes.l2 // 10
    if kept > room:
        return Refused(f"a block of {kept} bytes exceeds a tenth of L2, {room} bytes")
    return serves_if(not have_set_conflicts(out, axis), "rows have cache-set conflicts")


def _block_width(out: te.Tensor, target: Target) -> int:
    """Columns of a block: whole cache lines of the result, at least two vectors."""
    return max(LINE_BYTES // out.dtype.nbytes, 2 * vector_lanes(target))


def _schedule_column_blocks(
    s: te.Schedule, out: te.Tensor, axis: int, before: list[te.ComputeOp], work: float, target: Target
) -> None:
    """Compute a cache line of each row at a time: a column block stays in L1, its statistics in registers.

    Results of a block are stored while the next block is first read, so that neither's arithmetic waits for memory.
    """
    lanes, width = vector_lanes(target), _block_width(out, target)
    block_loop, row, column = split_into_column_blocks(s, out, axis, width, work, target)
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
    if is_streamed(out, width, target):
        _prefetch_ahead(s, busy, row, out, axis, width, _BLOCKS_AHEAD * width)


def _prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, out: te.Tensor, axis: int, width: int, ahead: int
) -> None:
    """Prefetch, in each iteration of `loop`, the `width` columns of a line that are read and written `ahead` later."""
    own = [constant_size([extent_of(a)]) for a in s[stage].op.axis[axis + 1 :]]

    def place(*i: Any) -> tuple[Any, Any]:
        return i[axis], ravel_index(i[axis + 1 : axis + 1 + len(own)], own) + ahead

    prefetch_columns(s, stage, loop, out, axis, width, place)


def _vectorize_block(s: te.Schedule, tensor: te.Tensor, column: te.IterVar, width: int) -> None:
    """Vectorise the columns of a block as one vector."""
    _, lane = s[tensor].split(column, factor=width)
    s[tensor].vectorize(lane)


def _schedule_blocks(
    s: te.Schedule, out: te.Tensor, axis: int, columns: Sequence[te.IterVar], before: list[te.ComputeOp],
    work: float, target: Target,
) -> None:  # fmt: skip
    """Split the last dimensions `columns` into blocks that stay in L2, and run every stage block by block."""
    lanes, sizes = vector_lanes(target), [extent_of(a) for a in columns]
    outer = s[out].op.axis[: -len(columns)]
    known, block = all(isinstance(d, int) for d in sizes), _block_columns(out, axis, constant_size(sizes), target)
    part, within = s[out].split(s[out].fuse(*columns), factor=block, tail="shift" if known else "guard")
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
                _prefetch_ahead(s, result, busy, out, axis, 2 * lanes, block)


def _block_columns(out: te.Tensor, axis: int, columns: int, target: Target) -> int:
    """Return the columns of a block, which divides `columns` as evenly as can be.

    A block is two cache lines of each row if what is read, kept, written and prefetched fits half of L1, else it takes
    an eighth of L2. Under cache-set conflicts, where few lines stay, it has 512 bytes of each row: these are finished
    quickly, and memory bandwidth is as good as for more.
    """
    length = constant_size(out.shape[axis : axis + 1])
    nbytes, caches = max(out.dtype.nbytes, 4), target.cache_bytes
    line = LINE_BYTES // nbytes
    if have_set_conflicts(out, axis):
        most = 8 * line
    elif 4 * length * 2 * LINE_BYTES <= caches.l1 // 2:
        most = 2 * line
    else:
        most = max(caches.l2 // 8 // (length * nbytes), 4 * line)
    parts = -(-columns // most)
    return min(-(-columns // parts // line) * line, columns)
