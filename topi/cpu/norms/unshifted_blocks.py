"""Unshifted softmax along a strided axis, larger than the LLC, on CPUs: column blocks, without row maxima.

Exponentials of unshifted elements are computed and added up row by row as they are read, interleaved with stores of the
results of the block before. Maxima, which take a pass of their own, are computed only where the speculation fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.column_blocks import Columns, prefetch_column_blocks, split_by_lines, vectorize_columns
from relayc.topi.cpu.norms.facts import uses_reduction
from relayc.topi.cpu.norms.row_statistics import inline_others
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.unshifted_softmax import element_of, exponentials_of, speculate_sums, stages_of

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["unshifted_block_lines", "unshifted_softmax_in_blocks"]

_BLOCK_LINES = (32, 16)
"""Cache lines of each row in a column block: the first for which L2 holds the exponentials. (Zen 4, GB/s by parts, by
blocks of 16 and of 32: 44 rows of 36355 13, 17, 19; 64 of 62500 14, 17, 20; 256 of 62500 17, 18, 19.)"""
_FLOAT_BYTES = 4
_LINE = LINE_BYTES // _FLOAT_BYTES
_SHARE_OF_L2 = 2
"""Divisor of the L2 size: the most bytes of exponentials of a block."""


def unshifted_block_lines(columns: Columns) -> int:
    """Return the cache lines of each row in a column block; 0 where parts of rows, each with its maximum, are better.

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
    largest, exact, total = stages_of(anchor)
    exponentials = exponentials_of(element_of(largest.op, axis), exact)
    sums = _sums_of(exponentials, total, axis)
    speculate_sums(s, anchor, exponentials, sums)
    before = [op.output(0) for op in inline_others(s, out, anchor) if uses_reduction(op)]
    columns = Columns(out, axis, target)
    block_loop, _ = split_by_lines(s, columns, lines * _LINE, work)
    for tensor in before:
        s[tensor].compute_at(s[out], block_loop)
        vectorize_columns(s, tensor, lanes, unroll=bool(tensor.op.reduce_axis))
    vectors = vectorize_columns(s, exponentials, max(lanes, _LINE))
    s[exponentials].pragma(exponentials.op.axis[axis], "fuse_with_next")
    vectorize_columns(s, sums, lanes, unroll=True)
    s[sums].pragma(sums.op.reduce_axis[0], "fuse_with_next")
    prefetch_column_blocks(s, columns, exponentials, vectors, lines * LINE_BYTES)


def _sums_of(exponentials: te.Tensor, total: te.Tensor, axis: int) -> te.Tensor:
    k = te.reduce_axis((0, exponentials.shape[axis]), name="k")
    return te.compute(total.shape, lambda *i: te.sum(exponentials(*i[:axis], k, *i[axis:]), axis=k), name=total.op.name)
