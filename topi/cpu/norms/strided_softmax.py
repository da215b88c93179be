"""Softmax along a strided axis, larger than the LLC, on CPUs: column blocks that memory is read for once.

Either by parts of a few rows that stay in L1, each with its own maximum; or unshifted: exponentials are computed and
added up row by row as they are read, and maxima, which take a pass of their own, only where the speculation fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cpu.column_blocks import ColumnPlan, Columns, StagePass, prefetch_later_rows
from relayc.topi.cpu.norms.facts import inline_others
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed, rows_ahead
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.softmax_parts import SoftmaxParts
from relayc.topi.unshifted_softmax import element_of, speculate

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["softmax_by_parts", "unshifted_block_lines", "unshifted_softmax_in_blocks"]

_VECTORS = 4
"""Vectors of columns that are computed together by parts, with their statistics in registers."""
_FEWEST_ROWS, _MOST_ROWS = 4, 32
"""Fewest and most rows of a part: each part costs one more exponential per column."""
_BLOCK_LINES = (32, 16)
"""Cache lines of each row in an unshifted block: the first for which L2 holds the exponentials. (Zen 4, GB/s by parts,
by blocks of 16 and of 32: 44 rows of 36355 13, 17, 19; 64 of 62500 14, 17, 20; 256 of 62500 17, 18, 19.)"""
_FLOAT_BYTES = 4
_SHARE_OF_L2 = 2
"""Divisor of the L2 size: the most bytes of exponentials of an unshifted block."""


def softmax_by_parts(
    s: te.Schedule, anchor: te.Operation, largest: te.ComputeOp, keep: bool, work: float, target: Target
) -> None:
    """Compute `anchor`, a softmax along its last dimension but one, by column blocks and parts of rows.

    `largest` is its stage for row maxima; `keep`: what that reads is stored for the other passes.
    """
    sizes = tuple([constant_size([d]) for d in anchor.output(0).shape])
    axis, lanes = len(sizes) - 2, vector_lanes(target)
    lines, most = _block_and_part(Columns(s.outputs[0].output(0), axis, target))
    size = max([n for n in range(_FEWEST_ROWS, most + 1) if sizes[axis] % n == 0], default=most)
    parts = SoftmaxParts(element_of(largest, axis), sizes, size, anchor.output(0).dtype, keep=keep)
    s.recompute(anchor.output(0), parts.result)
    columns = Columns(s.outputs[0].output(0), axis, target)
    by_parts = [parts.largest_of_part, parts.exponentials, parts.sum_of_part]
    by_parts = by_parts if parts.values is None else [parts.values, *by_parts]
    stages = [*by_parts, parts.largest, parts.power, parts.total, parts.share]
    inline_injective(s, [columns.out], keep=[t.op for t in stages])
    block = _VECTORS * lanes
    width = -(-lines * LINE_BYTES // columns.out.dtype.nbytes // block) * block
    by_rows = _interleaves_rows(columns)

    def passed(stage: te.Tensor) -> StagePass:
        """Reductions take a few vectors of columns over all rows; elementwise stages do unless `by_rows`."""
        reduces, fused = bool(s[stage].op.reduce_axis), s[stage].op.axis[axis] if stage in by_parts else None
        if reduces:
            return StagePass(stage, lanes, block, "vectors", fused)
        return StagePass(stage, block, 0 if by_rows else block, "", fused)

    plan = ColumnPlan(width, block, aligned=columns.are_stored_by_lines and not columns.are_whole_lines)
    note("block", "parts of rows", plan, rows_of_a_part=parts.size)
    _, loops = plan.apply(s, columns, [passed(stage) for stage in stages], work)
    s[columns.out].split(loops[columns.out].rows, factor=parts.size)
    if is_streamed(columns.out, plan.step(columns), target):
        # a part is first read before its exponentials, so the distance is longer by half a part than latency needs
        busy, rows = parts.values or parts.exponentials, rows_ahead(plan.step(columns) * columns.out.dtype.nbytes)
        prefetch_later_rows(
            s, columns, busy, loops[busy].vectors if by_rows else loops[busy].rows, block,
            rows=parts.size // 2 + rows, step=plan.step(columns), rows_of_a_part=parts.size,
        )  # fmt: skip


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


def unshifted_block_lines(columns: Columns) -> int:
    """Return the cache lines of each row in an unshifted block; 0 where parts, each with its maximum, are better.

    That is so for rows of whole cache lines (equal within a tenth); cores with more line-fill buffers weren't measured.
    """
    target, floats = columns.target, columns.out.dtype.nbytes == _FLOAT_BYTES
    if columns.are_whole_lines or not floats or not has_few_fill_buffers(target):
        return 0
    room = target.cache_bytes.l2 // _SHARE_OF_L2
    return next((n for n in _BLOCK_LINES if columns.rows * n * LINE_BYTES <= room), 0)


def unshifted_softmax_in_blocks(s: te.Schedule, anchor: te.Operation, lines: int, work: float, target: Target) -> None:
    """Compute `anchor`, a softmax along its last dimension but one, by column blocks of so many cache `lines`."""
    out, axis, lanes = s.outputs[0].output(0), len(anchor.output(0).shape) - 2, vector_lanes(target)
    exponentials, sums, _ = speculate(s, anchor, axis, keep=True)
    assert exponentials is not None
    statistics = inline_others(s, out, anchor)
    columns, line = Columns(out, axis, target), LINE_BYTES // _FLOAT_BYTES
    plan = ColumnPlan(lines * line, line, aligned=True)
    note("block", "unshifted", plan)
    passes = [StagePass(op.output(0), lanes, unroll="vectors" if op.reduce_axis else "") for op in statistics]
    plan.apply(s, columns, passes, work)
    loops = StagePass(exponentials, max(lanes, line), fused=exponentials.op.axis[axis]).apply(s)
    StagePass(sums, lanes, unroll="vectors", fused=sums.op.reduce_axis[0]).apply(s)
    rows = rows_ahead(lines * LINE_BYTES)
    prefetch_later_rows(s, columns, exponentials, loops.vectors, line, rows=rows, step=plan.step(columns))
