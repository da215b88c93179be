"""Reductions of short rows on CPUs: a vector of adjacent rows at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, serves_if
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.common import attach, parallel_outer, reduce_by_vectors
from relayc.topi.cpu.prefetch import LINE_BYTES, elements_ahead, is_streamed
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers, transposed_vectors
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, iterations
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["prefetch_rows_read", "reduce_short_rows", "rows_are_short"]

_FEW_VECTORS = 3
"""Rows shorter than so many vectors are reduced several at a time."""


def rows_are_short(op: te.Operation, out: te.Tensor, target: Target) -> Serves | Refused:
    """True if `op` reduces rows shorter than a few vectors, and enough of them for vectors of results `out`."""
    lanes, length = vector_lanes(target), iterations(op.reduce_axis)
    rows = [d for d in out.shape if d != 1][-1:]
    if not 0 < length < _FEW_VECTORS * lanes:
        return Refused(f"rows of {length} elements are {_FEW_VECTORS} vectors of {lanes} or longer")
    many = all(isinstance(d, int) and d >= lanes for d in rows) and bool(rows)
    return serves_if(many, f"adjacent rows are fewer than the {lanes} lanes of a vector")


def reduce_short_rows(
    s: te.Schedule, out: te.Tensor, passes: Sequence[te.Tensor], work: float, lanes: int, target: Target,
    speculation: te.Tensor | None = None,
) -> None:  # fmt: skip
    """Schedule `passes` over short rows, which `out` is computed from, with adjacent rows as `lanes` of a vector.

    `speculation`: the reduction that speculates on the result of the last pass. The elements of such a vector lie a row
    apart: they are transposed in registers if rows are long enough, else loaded singly. Either costs less than a
    horizontal reduction for each row.
    """
    axes = list(s[out].op.axis)
    position = max(n for n, axis in enumerate(axes) if extent_of(axis) != 1)
    vectors, lane = s[out].split(axes[position], factor=lanes, tail="shift")
    s[out].reorder(*axes[:position], vectors, *axes[position + 1 :], lane)
    s[out].vectorize(lane)
    group = parallel_outer(s, out, [*axes[:position], vectors], work, target)[-1]
    over_rows = [*passes, *([] if speculation is None else [speculation])]
    _transpose_rows(s, over_rows, position, lanes, group, out, target)
    for result in passes:
        attach(s, result, out, group)
    for result in over_rows:
        reduce_by_vectors(s, result, s[result].op.axis[position], unrolled=_FEW_VECTORS * vector_lanes(target))


def _transpose_rows(
    s: te.Schedule, passes: Sequence[te.Tensor], position: int, lanes: int, group: te.IterVar, out: te.Tensor,
    target: Target,
) -> None:  # fmt: skip
    """Let `passes` read a copy of their rows, along their dimension `position`, transposed in registers.

    Not where they read several tensors along rows, or one through other stages, or rows are shorter than a block.
    """
    found = {place for result in passes for place in _rows_read(s[result].op, position)}
    if len(found) != 1:
        return
    ((tensor, dimension),) = found
    length = tensor.shape[-1]
    if not isinstance(length, int) or lanes not in transposed_vectors(target, tensor.dtype, (length, lanes)):
        return
    readers = [s[result].op for result in passes]
    if any(tensor not in op.input_tensors for op in readers):
        return
    copy, blocks, vectors = transpose_in_registers(s, tensor, readers, dimension, lanes)
    s[copy].compute_at(s[out], group)
    s[copy].unroll(blocks)
    s[copy].unroll(vectors)
    if dimension == len(tensor.shape) - 2 and is_streamed(tensor, lanes * length, target):
        prefetch_rows_read(s, tensor, copy, blocks, block_of(lanes, tensor.dtype), lanes, target)


def _rows_read(op: te.Operation, position: int) -> list[tuple[te.Tensor, int]]:
    """Return the tensors whose rows a reduction reads, each with its dimension that `position` indexes."""
    row, line = op.axis[position].var, op.reduce_axis[-1].var
    return [
        (tensor, n)
        for tensor, index in reads(op)
        for n, i in enumerate(index[:-1])
        if only_variable(index[-1]) is line and only_variable(i) is row
    ]


def prefetch_rows_read(
    s: te.Schedule, tensor: te.Tensor, stage: te.Tensor, blocks: te.IterVar, block: int, rows: int, target: Target
) -> None:
    """Prefetch the cache lines of a later group of `rows` of a tensor, some for each block of columns of this one.

    `stage` has its dimension of columns before that of rows; `blocks` is its loop over blocks of `block` columns.
    """
    shape = [constant_size([d]) for d in tensor.shape]
    length, line = shape[-1], LINE_BYTES // tensor.dtype.nbytes
    group = rows * length
    ahead = elements_ahead(tensor.dtype.nbytes, target, group)
    blocks_of_rows, lines_of_rows = -(-length // block), -(-group // line)
    lines = -(-lines_of_rows // blocks_of_rows)

    def place(number: int, *i: Any) -> Sequence[Any]:
        *others, column, row = i
        first = ravel_index((*others, row, 0), shape)
        number_of_block = (column + block - 1) // block  # the last one may be shifted inwards
        return unravel_index(first + ahead + (number_of_block * lines + number) * line, shape)

    for number in range(lines):
        s[stage].prefetch(tensor, blocks, te.Prefetch(order=partial(place, number)))
