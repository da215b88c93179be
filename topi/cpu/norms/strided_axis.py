"""Softmax and normalisations of rows that lie across memory: neighbouring rows together, on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
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
from relayc.topi.cpu.norms.copied_blocks import is_worth_copying, schedule_copied, with_copy
from relayc.topi.cpu.norms.row_statistics import elements_of, is_worth_keeping, split_at, uses_reduction
from relayc.topi.cpu.norms.softmax_parts import softmax_by_parts
from relayc.topi.cpu.norms.unshifted_blocks import unshifted_block_lines, unshifted_softmax_in_blocks
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed
from relayc.topi.cpu.reductions.reduction import add_up_in_registers, add_up_lines, lines_per_step
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import operations_behind
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_across_memory"]

_FEWEST_ROWS_OF_PARTS = 40
_LEAST_BYTES_OF_PARTS = 2048
"""Parts of fewer rows, or in fewer strips, have more in common than of their own."""
_OTHER_REGISTERS = 8
"""What e to a vector, its largest number and its sum take."""
_STRIPS_AHEAD = 4
"""How far ahead is asked for what a strip reads and writes: further drives out what is at hand."""


def schedule_across_memory(s: te.Schedule, outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Rows across memory: neighbouring rows together, every stage passing over the lines of them."""
    axis = int(anchor.attrs["axis"])
    few = _fits_in_registers(outs[0], axis, _stages_beside(outs, anchor)[0], target)
    if copied := not few and is_worth_copying(outs, anchor, target):
        anchor = with_copy(s, outs, anchor)
    anchor = collapse_columns(s, anchor, axis, [elements_of(anchor).op] if copied else [])
    merged = len(anchor.axis) == axis + 2
    copy = elements_of(anchor) if copied and merged else None
    out = s.outputs[0].output(0)
    before, behind = _stages_beside([out], anchor)
    inline_injective(s, [out], keep=[anchor, *before, *([] if copy is None else [copy.op])])
    for op in behind:
        if op is not out.op:
            s[op].compute_inline()
    work = constant_size(out.shape) * element_cost([*before, *behind])
    largest = next((op for op in before if op.tag == "softmax_max"), None)
    if merged and largest is not None and not anchor.attrs.get("log") and _is_worth_parts(out, axis, target):
        kept = any(not uses_reduction(op) for op in before)
        if lines := unshifted_block_lines(out, axis, target):
            unshifted_softmax_in_blocks(s, anchor, lines, work, target)
        else:
            softmax_by_parts(s, anchor, largest, kept, work, target)
    elif copy is not None:
        schedule_copied(s, out, axis, copy, before, work, target)
    elif merged and few:
        _schedule_in_registers(s, out, axis, before, work, target)
    elif merged and _fits_in_blocks(out, axis, target):
        _schedule_column_blocks(s, out, axis, before, work, target)
    else:
        columns = s[out].op.axis[axis + 1 if merged else -1 :]
        _schedule_blocks(s, out, axis, columns, before, work, target)
    return s


def _stages_beside(outs: list[te.Tensor], anchor: te.Operation) -> tuple[list[te.ComputeOp], list[te.ComputeOp]]:
    """What is computed once for rows in front of the anchor, and the anchor with all that reads it."""
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    before, behind = split_at(stages, anchor)
    return [op for op in before if uses_reduction(op) or is_worth_keeping(op, stages, anchor, near=False)], behind


def _is_worth_parts(out: te.Tensor, axis: int, target: Target) -> bool:
    """Are there too many rows for strips to stay in caches, or does what is read in parts go past these anyway?

    Conversions and the arithmetic of float64 are what binds strips of other types, not the second pass over memory.
    """
    if not all(isinstance(d, int) for d in out.shape):
        return False
    length, columns = constant_size(out.shape[axis : axis + 1]), constant_size(out.shape[axis + 1 :])
    if length < _FEWEST_ROWS_OF_PARTS or columns * out.dtype.nbytes < _LEAST_BYTES_OF_PARTS:
        return False
    streamed = are_stored_by_lines(out, axis, target)
    if len(out.shape) > axis + 2 and not are_whole_lines(out, axis):  # smaller vectors are bound by arithmetic
        streamed = streamed and vector_lanes(target) * out.dtype.nbytes >= LINE_BYTES
    if _fits_in_blocks(out, axis, target):
        return streamed and out.dtype.nbytes == 4
    return streamed or not have_set_conflicts(out, axis)


def _fits_in_registers(out: te.Tensor, axis: int, before: list[te.ComputeOp], target: Target) -> bool:
    """Do registers hold a vector of each element of a row, where these share sets of the caches, which don't?

    A vector is a cache line, and results are stored past the caches by these. What takes more arithmetic than a
    softmax would be too much code.
    """
    if not all(isinstance(d, int) for d in out.shape) or not all(uses_reduction(op) for op in before):
        return False
    length, line = constant_size(out.shape[axis : axis + 1]), vector_lanes(target) * out.dtype.nbytes == LINE_BYTES
    streamed = out.dtype.nbytes == 4 and are_whole_lines(out, axis) and are_stored_by_lines(out, axis, target)
    return line and streamed and length <= target.vector_registers - _OTHER_REGISTERS and have_set_conflicts(out, axis)


def _schedule_in_registers(
    s: te.Schedule, out: te.Tensor, axis: int, before: list[te.ComputeOp], work: float, target: Target
) -> None:
    """A vector of each element of a row at a time, which is read once: how few of them caches hold doesn't matter."""
    width = LINE_BYTES // out.dtype.nbytes
    strip, row, column = split_into_column_blocks(s, out, axis, width, work, target)
    s[out].unroll(row)
    s[out].vectorize(column)
    busy, line = out, row
    for op in before:
        result = op.output(0)
        s[result].compute_at(s[out], strip)
        *data, lane = op.axis
        s[result].vectorize(lane)
        if op.reduce_axis:
            s[result].reorder(*data, *op.reduce_axis, lane)
            s[result].unroll(op.reduce_axis[-1])
        elif len(op.axis) > axis + 1:
            busy, line = result, op.axis[axis]
            s[result].unroll(line)
    _prefetch_ahead(s, busy, line, out, axis, width, _STRIPS_AHEAD * width)


def _fits_in_blocks(out: te.Tensor, axis: int, target: Target) -> bool:
    """Are there two strips at least, so short that they and the next ones stay in the second-level cache?

    Rows that are one block in that cache already lie in order there. Where elements of a row share sets of the caches
    few of them stay there.
    """
    if not all(isinstance(d, int) for d in out.shape):
        return False
    columns, length = constant_size(out.shape[axis + 1 :]), constant_size(out.shape[axis : axis + 1])
    width = _block_width(out, target)
    if columns < 2 * width or _block_columns(out, axis, columns, target) == columns:
        return False
    kept = length * width * max(out.dtype.nbytes, 4)
    return kept <= target.cache_bytes.l2 // 10 and not have_set_conflicts(out, axis)


def _block_width(out: te.Tensor, target: Target) -> int:
    """Columns of a strip: whole lines of the result, two vectors at least."""
    return max(LINE_BYTES // out.dtype.nbytes, 2 * vector_lanes(target))


def _schedule_column_blocks(
    s: te.Schedule, out: te.Tensor, axis: int, before: list[te.ComputeOp], work: float, target: Target
) -> None:
    """A cache line of each row at a time: a strip stays in the first-level cache, statistics stay in registers.

    Results of a strip are stored while the next one is read for the first time: arithmetic of neither waits for memory.
    """
    lanes, width = vector_lanes(target), _block_width(out, target)
    strip, row, column = split_into_column_blocks(s, out, axis, width, work, target)
    _, each = s[out].split(row, factor=lines_per_step(extent_of(row)))
    s[out].unroll(each)
    _vectorize_block(s, out, column, width)
    busy, row = out, each
    for op in before:
        result = op.output(0)
        if op.reduce_axis:
            for stage in add_up_in_registers(s, result, lanes):
                s[stage].compute_at(s[out], strip)
        else:
            s[result].compute_at(s[out], strip)
            _vectorize_block(s, result, op.axis[-1], width)
            busy, row = (result, op.axis[axis]) if len(op.axis) > axis + 1 else (busy, row)
    if is_streamed(out, width, target):
        _prefetch_ahead(s, busy, row, out, axis, width, _STRIPS_AHEAD * width)


def _prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, out: te.Tensor, axis: int, width: int, ahead: int
) -> None:
    """Ask in each iteration of `loop`, `width` columns of one line, for those `ahead` that will be read and written."""
    own = [constant_size([extent_of(a)]) for a in s[stage].op.axis[axis + 1 :]]

    def place(*i: Any) -> tuple[Any, Any]:
        return i[axis], ravel_index(i[axis + 1 : axis + 1 + len(own)], own) + ahead

    prefetch_columns(s, stage, loop, out, axis, width, place)


def _vectorize_block(s: te.Schedule, tensor: te.Tensor, column: te.IterVar, width: int) -> None:
    """Run the columns of a strip as one vector."""
    _, lane = s[tensor].split(column, factor=width)
    s[tensor].vectorize(lane)


def _schedule_blocks(
    s: te.Schedule, out: te.Tensor, axis: int, columns: Sequence[te.IterVar], before: list[te.ComputeOp],
    work: float, target: Target,
) -> None:  # fmt: skip
    """As many neighbouring rows, along the last dimensions `columns`, as keep a block in the second-level cache."""
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
    """How many of `columns` neighbouring rows along `axis` are worked on together: as evenly as they can be divided.

    Two cache lines of each where what is read, kept, written and fetched ahead leaves half of the first-level cache
    free, an eighth of the second-level cache otherwise. Elements of a row that are whole pages apart share the sets of
    caches, which few lines fit in: half a kilobyte of each is done with quickly, and memory likes it as well as more.
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
