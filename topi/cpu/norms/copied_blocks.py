"""Norms of rows that lie across memory, beyond the caches, on CPUs: strips are copied as they are read, once.

Half a kilobyte of each row at a time lies in a buffer in one piece, whatever sets of the caches the rows share in
memory. What a strip's elements are replaced by, row by row, are those of the next one: memory has to read and to store
all the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.column_blocks import (
    are_stored_by_lines,
    are_whole_lines,
    have_set_conflicts,
    prefetch_column_blocks,
    split_by_lines,
    split_into_column_blocks,
)
from relayc.topi.cpu.norms.row_statistics import elements_of, uses_reduction
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["is_worth_copying", "schedule_copied", "with_copy"]

_BLOCK_BYTES = 512
"""Of each row: less is read badly where rows share sets, more takes more of the caches, and is no faster."""
_STRIP_BYTES_OF_FEW_LINES = 256
"""For cores that wait for few lines, which are asked for fewer in a row: of whole cache lines that share no sets."""
_FEW_ROWS = 28
"""Rows that processors follow all at once as each is read on by a cache line at a time, unless they share sets."""
_SHARE_OF_L2 = 2
"""Which part of the second-level cache a strip may take."""
_SHARE_OF_REGISTERS = 4
"""Which part of the registers has sums of squares: another one has means."""


def is_worth_copying(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> bool:
    """Is this a norm of rows across memory that the caches don't hold, or only a few of, while they hold a strip?"""
    out, axis = outs[0], int(anchor.attrs["axis"])
    known = all(isinstance(d, int) for d in out.shape)
    if len(outs) > 1 or anchor.tag not in ("standardize", "l2_normalize") or not known or out.dtype.nbytes < 4:
        return False
    x, rows = elements_of(anchor), constant_size(out.shape[axis : axis + 1])
    if uses_reduction(x.op) or rows * _BLOCK_BYTES * _SHARE_OF_L2 > target.cache_bytes.l2:
        return False
    far = rows > _FEW_ROWS and is_beyond_caches(out, target)
    several = constant_size(out.shape[axis + 1 :]) * out.dtype.nbytes >= 2 * _BLOCK_BYTES
    by_lines = are_stored_by_lines(out, axis, target) or are_whole_lines(out, axis)
    return several and by_lines and (far or have_set_conflicts(out, axis))


def with_copy(s: te.Schedule, outs: list[te.Tensor], anchor: te.Operation) -> te.Operation:
    """The anchor as it reads what it is of from a stage that can be kept: its own, or a copy of an input."""
    x = elements_of(anchor)
    if isinstance(x.op, te.PlaceholderOp):
        s.cache_read(x, "local", [op for op in operations_behind(outs) if x in op.input_tensors])
    return s.current(anchor.output(0)).op


def schedule_copied(
    s: te.Schedule, out: te.Tensor, axis: int, copy: te.Tensor, before: list[te.ComputeOp], work: float, target: Target
) -> None:
    """Strips of all rows: copied and added up in one pass, which stores the results of the strip before as well."""
    nbytes = _block_bytes(out, axis, target)
    width = nbytes // out.dtype.nbytes
    if are_whole_lines(out, axis):
        strip, _, column = split_into_column_blocks(s, out, axis, width, work, target)
        s[out].unroll(_by_lines(s, out, column))
    else:
        strip, _ = split_by_lines(s, out, axis, width, work, target)
    s[copy].compute_at(s[out], strip)
    *_, row, column = s[copy].op.axis
    lines = _by_lines(s, copy, column)
    if not has_few_fill_buffers(target):  # the compiler puts next to each other what an iteration asks for
        s[copy].unroll(lines)
    s[copy].pragma(row, "fuse_with_next")
    prefetch_column_blocks(s, out, copy, lines, axis, nbytes)
    statistics = [op.output(0) for op in before if uses_reduction(op)]
    first = next(t for t in statistics if t.op.reduce_axis)
    for tensor in statistics:
        s[tensor].compute_at(s[out], strip)
        if tensor is first:
            _add_up_beside_copy(s, tensor)
        elif tensor.op.reduce_axis:
            _add_up_copied(s, tensor, width, target)
        else:
            _by_lines(s, tensor, s[tensor].op.axis[-1])


def _block_bytes(out: te.Tensor, axis: int, target: Target) -> int:
    """How much of each row a strip is."""
    few = has_few_fill_buffers(target) and are_whole_lines(out, axis) and not have_set_conflicts(out, axis)
    return _STRIP_BYTES_OF_FEW_LINES if few else _BLOCK_BYTES


def _by_lines(s: te.Schedule, tensor: te.Tensor, column: te.IterVar) -> te.IterVar:
    """Run cache lines of a strip as vectors; returns the loop over them."""
    lines, lane = s[tensor].split(column, factor=LINE_BYTES // tensor.dtype.nbytes)
    s[tensor].vectorize(lane)
    return lines


def _add_up_beside_copy(s: te.Schedule, tensor: te.Tensor) -> None:
    """Row by row as they are copied: no pass over the strip of its own."""
    *data, column = s[tensor].op.axis
    (row,) = s[tensor].op.reduce_axis
    s[tensor].reorder(*data, row, column)
    s[tensor].unroll(_by_lines(s, tensor, column))
    s[tensor].pragma(row, "fuse_with_next")


def _add_up_copied(s: te.Schedule, tensor: te.Tensor, width: int, target: Target) -> None:
    """As many columns at once as have their sums in registers."""
    *data, column = s[tensor].op.axis
    (row,), lanes = s[tensor].op.reduce_axis, vector_lanes(target)
    block, within = s[tensor].split(column, factor=min(target.vector_registers // _SHARE_OF_REGISTERS * lanes, width))
    vectors, lane = s[tensor].split(within, factor=lanes)
    s[tensor].reorder(*data, block, row, vectors, lane)
    s[tensor].unroll(vectors)
    s[tensor].vectorize(lane)
