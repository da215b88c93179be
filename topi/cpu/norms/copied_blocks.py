"""Norms along a strided axis, larger than the LLC, on CPUs: each column block is packed into a buffer as it is read.

The buffer holds up to 512 bytes of each row contiguously, so cache-set conflicts between rows don't matter. While a
block is copied, the results of the block before are stored row by row, which keeps memory reads and writes overlapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, note, serves_if
from relayc.topi.cpu.column_blocks import (
    Columns,
    prefetch_column_blocks,
    split_by_lines,
    split_into_column_blocks,
    vectorize_columns,
)
from relayc.topi.cpu.norms.facts import RowFacts, elements_of, uses_reduction
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["is_worth_copying", "schedule_copied_blocks", "with_cached_input"]

_BLOCK_BYTES = 512
"""Bytes of each row in a column block: less reads slowly under cache-set conflicts, more is no faster."""
_BLOCK_BYTES_FEW_BUFFERS = 256
"""`_BLOCK_BYTES` on cores with few line-fill buffers, for rows of whole cache lines without set conflicts."""
_FEW_ROWS = 28
"""Rows that the hardware prefetcher follows as concurrent streams, unless they have cache-set conflicts."""
_SHARE_OF_L2 = 2
"""Divisor of the L2 size: the most bytes of a column block."""
_SHARE_OF_REGISTERS = 4
"""Divisor of the vector registers: how many hold sums of squares; as many hold means."""


def is_worth_copying(facts: RowFacts) -> Serves | Refused:
    """True for a norm along a strided axis whose rows exceed the caches or conflict in them, while a block fits L2."""
    out, target = facts.out, facts.target
    columns = Columns(out, facts.axes[0], target)
    norm, rows = facts.anchor.tag in ("standardize", "l2_normalize"), columns.rows
    if not facts.has_one_result or not norm or not columns.are_static or out.dtype.nbytes < 4:
        return Refused("no norm of one result of a static shape, in at least 32 bits")
    if uses_reduction(elements_of(facts.anchor).op) or rows * _BLOCK_BYTES * _SHARE_OF_L2 > target.cache_bytes.l2:
        return Refused(f"elements are reduced ones, or {rows} rows of {_BLOCK_BYTES} bytes exceed half of L2")
    by_lines = columns.are_stored_by_lines or columns.are_whole_lines
    if columns.row_bytes < 2 * _BLOCK_BYTES or not by_lines:
        return Refused("rows are shorter than two blocks, or are not stored by whole cache lines")
    large = rows > _FEW_ROWS and is_beyond_caches(out, target)
    return serves_if(large or columns.have_set_conflicts, "the caches hold the rows, without set conflicts")


def with_cached_input(s: te.Schedule, facts: RowFacts) -> te.Operation:
    """Return the anchor reading its elements from a stage that can be buffered: a computed one, or a `cache_read`."""
    x = elements_of(facts.anchor)
    if isinstance(x.op, te.PlaceholderOp):
        s.cache_read(x, "local", [op for op in facts.stages if x in op.input_tensors])
    return s.current(facts.result).op


def schedule_copied_blocks(
    s: te.Schedule, columns: Columns, copy: te.Tensor, before: list[te.ComputeOp], work: float
) -> None:
    """Copy and accumulate each column block in one pass, which also stores the results of the block before."""
    out, target, nbytes = columns.out, columns.target, _block_bytes(columns)
    width = nbytes // out.dtype.nbytes
    note("block", "copied", bytes_of_a_row=nbytes)
    if columns.are_whole_lines:
        block_loop, _, column = split_into_column_blocks(s, columns, width, work)
        lines, lane = s[out].split(column, factor=columns.line)
        s[out].unroll(lines)
        s[out].vectorize(lane)
    else:
        block_loop, _ = split_by_lines(s, columns, width, work)
    s[copy].compute_at(s[out], block_loop)
    row, lines = s[copy].op.axis[-2], vectorize_columns(s, copy, LINE_BYTES // copy.dtype.nbytes)
    if not has_few_fill_buffers(target):  # unrolling would issue all prefetches of a row at once
        s[copy].unroll(lines)
    s[copy].pragma(row, "fuse_with_next")
    prefetch_column_blocks(s, columns, copy, lines, nbytes)
    statistics = [op.output(0) for op in before if uses_reduction(op)]
    first = next(t for t in statistics if t.op.reduce_axis)
    for tensor in statistics:
        s[tensor].compute_at(s[out], block_loop)
        if tensor is first:  # fused with the copy, so that the reduction needs no pass of its own
            vectorize_columns(s, tensor, LINE_BYTES // tensor.dtype.nbytes, unroll=True)
            s[tensor].pragma(tensor.op.reduce_axis[0], "fuse_with_next")
        elif tensor.op.reduce_axis:
            _add_up_copied(s, tensor, width, target)
        else:
            vectorize_columns(s, tensor, LINE_BYTES // tensor.dtype.nbytes)


def _block_bytes(columns: Columns) -> int:
    """Bytes of each row in a column block."""
    few = has_few_fill_buffers(columns.target) and columns.are_whole_lines and not columns.have_set_conflicts
    return _BLOCK_BYTES_FEW_BUFFERS if few else _BLOCK_BYTES


def _add_up_copied(s: te.Schedule, tensor: te.Tensor, width: int, target: Target) -> None:
    """Accumulate the copied block, as many columns at a time as have their sums in registers."""
    *data, column = s[tensor].op.axis
    (row,), lanes = s[tensor].op.reduce_axis, vector_lanes(target)
    block, within = s[tensor].split(column, factor=min(target.vector_registers // _SHARE_OF_REGISTERS * lanes, width))
    vectors, lane = s[tensor].split(within, factor=lanes)
    s[tensor].reorder(*data, block, row, vectors, lane)
    s[tensor].unroll(vectors)
    s[tensor].vectorize(lane)
