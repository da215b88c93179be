"""Transposes on GPUs through tiles in shared memory, so that reads and writes are both coalesced.

A block of 32 by 8 threads moves a tile of 32 by 32 elements. A row of the tile is padded by one element: the threads of
a warp, which read a column of it, then access 32 different banks.
"""

from __future__ import annotations

from typing import NamedTuple

from relayc import te
from relayc.te.tir import PrimExpr, Var, as_int
from relayc.topi.cuda.common import block_axis, thread_axis
from relayc.topi.cuda.lanes import reads_of
from relayc.topi.groups import constant_size, is_injective
from relayc.topi.registry import operations_behind

__all__ = ["schedule_transpose", "strided_reads"]

_TILE = 32
_ROWS = 8
"""Rows of a tile that a block moves at a time."""
_MIN_SIZE = 8
"""Minimum size of the two axes for which a tile is worth the barrier."""


class StridedReads(NamedTuple):
    """The axis of the output along which large inputs are contiguous in memory, and those inputs."""

    axis: int
    tensors: tuple[te.Tensor, ...]


def strided_reads(out: te.Tensor) -> StridedReads | None:
    """The inputs that `out` reads strided, with all producers inlined; None unless they agree on the contiguous axis.

    Also None if a producer is a stage of its own: it might read what the tiles hold.
    """
    op = out.op
    sizes = [as_int(d) for d in out.shape]
    inlined = all(isinstance(o, te.PlaceholderOp) or o is op or is_injective(o) for o in operations_behind([out]))
    if not isinstance(op, te.ComputeOp) or op.reduce_axis or not inlined or len(sizes) < 2 or None in sizes:
        return None
    numbers = {axis.var: n for n, axis in enumerate(op.axis)}
    found: dict[te.Tensor, int] = {}
    for tensor, index in reads_of(out):
        if 2 * constant_size(tensor.shape) < constant_size(out.shape):
            continue
        axis = _memory_axis(index, numbers)
        if axis is None or found.get(tensor, axis) != axis:
            return None
        found[tensor] = axis
    strided = set(found.values())
    if len(strided) != 1 or len(sizes) - 1 in strided:
        return None
    axis = strided.pop()
    wide = min(sizes[axis] or 0, sizes[-1] or 0) >= _MIN_SIZE
    return StridedReads(axis, tuple(found)) if wide else None


def _memory_axis(index: list[PrimExpr], numbers: dict[Var, int]) -> int | None:
    """The output axis that is the last index; None unless all indices are constants or axes, each axis once."""
    variables = [i for i in index if isinstance(i, Var)]
    plain = all(isinstance(i, Var) or as_int(i) is not None for i in index)
    if not plain or not index or len(set(variables)) != len(variables):
        return None
    last = index[-1]
    return numbers.get(last) if isinstance(last, Var) else None


def schedule_transpose(s: te.Schedule, out: te.Tensor, reads: StridedReads) -> None:
    """Schedule `out` by tiles of the strided and the last axis, the strided inputs of a tile in shared memory."""
    readers = {
        tensor: [op for op in operations_behind([out]) if isinstance(op, te.ComputeOp) and tensor in op.input_tensors]
        for tensor in reads.tensors
    }
    stage = s[out]
    axes = list(stage.op.axis)
    row_tile, row = stage.split(axes[reads.axis], factor=_TILE)
    column_tile, column = stage.split(axes[-1], factor=_TILE)
    others = [axis for n, axis in enumerate(axes[:-1]) if n != reads.axis]
    step, row = stage.split(row, factor=_ROWS)
    stage.reorder(*others, row_tile, column_tile, step, row, column)
    block = stage.fuse(*others, row_tile, column_tile)
    stage.bind(block, block_axis())
    stage.bind(row, thread_axis(_ROWS, "y"))
    stage.bind(column, thread_axis(_TILE))
    stage.unroll(step)
    last = stage.op.axis[-1].var
    for tensor, reading in readers.items():
        position = next(_positions(index, last) for t, index in reads_of(out) if t is tensor)
        tile = s.cache_read(tensor, "shared", reading)
        s[tile].compute_at(s[out], block)
        _load_tile(s, tile, position)


def _positions(index: list[PrimExpr], last: Var) -> int | None:
    """The dimension of the input that runs along the output's last axis; None when it is broadcast along it."""
    return next((d for d, i in enumerate(index) if i is last), None)


def _load_tile(s: te.Schedule, tile: te.Tensor, across: int | None) -> None:
    """Load rows of the tile by the threads of a row of the block."""
    stage = s[tile]
    axes = list(stage.op.axis)
    stage.bind(axes[-1], thread_axis(_TILE))
    if across is None:
        return
    stage.storage_align(axes[across], _TILE, 1)
    step, row = stage.split(axes[across], factor=_ROWS)
    stage.bind(row, thread_axis(_ROWS, "y"))
    stage.unroll(step)
