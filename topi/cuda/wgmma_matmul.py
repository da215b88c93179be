"""Matrix products by warp groups of four warps (`wgmma`), with both operands read from shared memory.

A slice is 64 products deep: a line of 128 bytes for each row or column, or for 64 columns at one depth, in memory
order; lines are swizzled, as the instruction requires, which avoids bank conflicts of copies and multiplications. A
warp group multiplies 64 rows by the columns of its tile and keeps the accumulators in registers, which go to the
epilogue as in `mma_matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.tir import Dim, PrimExpr, as_dim
from relayc.topi.cuda.common import thread_axis
from relayc.topi.cuda.contraction import Contraction, Operand, within, zero_filled
from relayc.topi.cuda.mma_matmul import schedule_sums
from relayc.topi.cuda.product_tiles import WgmmaTile
from relayc.topi.cuda.tensor_core import COLUMNS, ROWS, SLICE, WARP_COLUMNS, Multiply, multiply_slice
from relayc.topi.utils import ceil_div

__all__ = ["schedule_wgmma", "supports_wgmma"]

_PART = 8
"""Elements in 16 bytes."""
_SCOPE = "shared.dyn"
"""Dynamic shared memory, which is aligned as swizzled lines require."""


def supports_wgmma(c: Contraction) -> bool:
    """Can the operands, of two bytes, be copied to shared memory 16 bytes at a time, the left one along the depth?"""
    if c.left.value.dtype.nbytes != 2 or c.right.value.dtype.nbytes != 2 or c.right.packed > 1:
        return False
    return c.left.copy_direction(_PART) == ("depth", _PART) and c.right.copy_direction(_PART)[1] == _PART


@dataclass(frozen=True, slots=True)
class _Slice:
    """An operand as (batch, group of 8, row or column, depth), or `transposed` (batch, block of 64, depth, column)."""

    view: te.Tensor
    transposed: bool

    @staticmethod
    def of(operand: Operand, name: str, batch: Dim, tile: int) -> _Slice:
        """The operand padded with zeros to whole tiles of `tile` rows or columns and whole slices."""
        transposed = operand.copy_direction(_PART)[0] == "free"
        free_size, depth_size = operand.free_size, operand.depth_size
        together = SLICE if transposed else COLUMNS
        widths = (1, _PART) if transposed else (_PART, 1)

        def body(b: Any, group: Any, *i: Any) -> PrimExpr:
            k, each = i if transposed else i[::-1]
            f = group * together + each
            inside = (*within(k, depth_size, SLICE, widths[0]), *within(f, free_size, tile, widths[1]))
            return zero_filled(operand.at(b, f, k), *inside)

        groups = as_dim(ceil_div(free_size, tile) * (tile // together))
        depth = as_dim(ceil_div(depth_size, SLICE) * SLICE)
        shape = (batch, groups, depth, together) if transposed else (batch, groups, together, depth)
        return _Slice(te.compute(shape, body, name=name), transposed)

    def copy(self, s: te.Schedule, threads: int) -> None:
        """Copy a slice by all threads, 16 bytes each, adjacent ones of memory by adjacent threads."""
        stage = s[self.view]
        _, *outer, line = stage.op.axis
        stage.swizzle()
        parts, lanes = stage.split(line, factor=_PART)
        stage.vectorize(lanes)
        rest, thread = stage.split(stage.fuse(*outer, parts), factor=threads)
        stage.bind(thread, thread_axis(threads))
        stage.unroll(rest)


def schedule_wgmma(s: te.Schedule, out: te.Tensor, c: Contraction, tile: WgmmaTile, instruction: Multiply) -> None:
    """Schedule contraction `c` and the output `out` that reads it at its own index; all between is inlined."""
    left = _Slice.of(c.left, "left", c.batch, tile.rows)
    right = _Slice.of(c.right, "right", c.batch, tile.columns)
    k = te.reduce_axis((0, left.view.shape[3]), name="k")

    def element(b: Any, i: Any, block: Any, j: Any, g: Any, t: Any, half: Any, e: Any) -> PrimExpr:
        x, column = left.view(b, i * 2 + half, g, k), t * 2 + e
        y = (
            right.view(b, block, k, j * COLUMNS + column)
            if right.transposed
            else right.view(b, block * 8 + j, column, k)
        )
        return te.sum(te.cast(c.wide, x) * te.cast(c.wide, y), axis=k)

    rows = as_dim(ceil_div(c.rows, tile.rows) * tile.rows)
    columns = as_dim(ceil_div(c.columns, tile.columns) * tile.columns)
    shape = (c.batch, as_dim(rows // ROWS), as_dim(columns // SLICE), SLICE // COLUMNS, ROWS // 2, WARP_COLUMNS, 2, 2)
    product = te.compute(shape, element, name="product")

    def unpacked(b: Any, i: Any, j: Any) -> PrimExpr:
        tiles = i // ROWS, j // SLICE, j % SLICE // COLUMNS
        return product(b, *tiles, i % 8, j % COLUMNS // 2, i % ROWS // 8, j % 2)

    sums = te.compute((c.batch, rows, columns), unpacked, name="sums")
    schedule_sums(s, out, c, tile, product, sums, _SCOPE)
    stage = s[product]
    stage.set_scope("local")
    _, i, block, *inside = stage.op.axis
    step, part = stage.split(k, factor=SLICE)
    stage.reorder(step, i, block, *inside, part)
    stage.tensorize(block, multiply_slice(instruction, COLUMNS * tile.tiles[1], right.transposed))
    for operand in (left, right):
        s[operand.view].set_scope(_SCOPE)
        s[operand.view].compute_at(stage, step)
        s[operand.view].pipeline(tile.stages, behind=True)
        operand.copy(s, tile.threads)
