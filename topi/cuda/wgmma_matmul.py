"""Products of matrices by groups of four warps (`wgmma`): both operands are multiplied where they lie in shared memory.

Slices are made of matrices of 8 x 8 elements, 128 bytes that lie together; a group of warps multiplies 64 rows by the
columns of its tile in a few instructions for a whole slice, and keeps the sums in registers. Matrices are padded by 16
bytes, so that threads which copy adjacent parts of a line of memory write to different banks. The sums go to the
epilogue as they do in `mma_matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import te
from te.tir import Dim, PrimExpr, as_dim
from topi.cuda.common import thread_axis
from topi.cuda.contraction import Contraction, Operand, within, zero_filled
from topi.cuda.cost import VECTOR_BYTES
from topi.cuda.mma_matmul import schedule_sums
from topi.cuda.product_tiles import STATIC_SHARED_BYTES, WgmmaTile
from topi.cuda.tensor_core import COLUMNS, ROWS, WARP_COLUMNS, Multiply, multiply_slice
from topi.utils import ceil_div

__all__ = ["multiplies_slices", "schedule_wgmma"]

_SIDE = 8
"""Rows and columns of the matrices that slices are made of."""


def multiplies_slices(c: Contraction) -> bool:
    """Can the operands be copied to shared memory 16 bytes at a time, two bytes each?"""
    operands = (c.left, c.right)
    return all(o.value.dtype.nbytes == 2 and o.copy_direction(_SIDE)[1] == _SIDE for o in operands)


@dataclass(frozen=True, slots=True)
class _Slice:
    """An operand as (batch, group, chunk, row or column, depth), or `turned` (batch, chunk, group, depth, row or column).

    The last two are those of a matrix, the last one in the order of memory.
    """

    view: te.Tensor
    turned: bool

    @staticmethod
    def of(operand: Operand, name: str, batch: Dim, tile: int, depth: int) -> _Slice:
        """The operand filled up with zeros to whole tiles of `tile` rows or columns and `depth` products."""
        turned = operand.copy_direction(_SIDE)[0] == "free"
        free_size, depth_size = operand.free_size, operand.depth_size

        def body(b: Any, *i: Any) -> PrimExpr:
            group, chunk, free, deep = (i[1], i[0], i[3], i[2]) if turned else i
            f, k = group * _SIDE + free, chunk * _SIDE + deep
            widths = (1, _SIDE) if turned else (_SIDE, 1)
            inside = (*within(k, depth_size, depth, widths[0]), *within(f, free_size, tile, widths[1]))
            return zero_filled(operand.at(b, f, k), *inside)

        groups = as_dim(ceil_div(free_size, tile) * (tile // _SIDE))
        chunks = as_dim(ceil_div(depth_size, depth) * (depth // _SIDE))
        outer = (chunks, groups) if turned else (groups, chunks)
        return _Slice(te.compute((batch, *outer, _SIDE, _SIDE), body, name=name), turned)

    @property
    def chunks(self) -> Dim:
        """Matrices along the depth."""
        return self.view.shape[1 if self.turned else 2]

    @property
    def groups(self) -> Dim:
        """Matrices along the rows or columns."""
        return self.view.shape[2 if self.turned else 1]

    def at(self, b: Any, group: Any, free: Any, chunk: Any, deep: Any) -> PrimExpr:
        """The element of row or column `free` of a group, at position `deep` of a chunk of the depth."""
        return self.view(b, chunk, group, deep, free) if self.turned else self.view(b, group, chunk, free, deep)

    def copy(self, s: te.Schedule, threads: int) -> None:
        """All threads copy a slice, 16 bytes each time, adjacent ones of memory by adjacent threads."""
        stage = s[self.view]
        _, outer, inner, row, lanes = stage.op.axis
        stage.storage_align(inner, 2 * _SIDE, _SIDE)
        stage.reorder(outer, row, inner, lanes)
        stage.vectorize(lanes)
        rest, thread = stage.split(stage.fuse(outer, row, inner), factor=threads)
        stage.bind(thread, thread_axis(threads))
        stage.unroll(rest)


def schedule_wgmma(s: te.Schedule, out: te.Tensor, c: Contraction, tile: WgmmaTile, instruction: Multiply) -> None:
    """Schedule contraction `c` and the output `out` that reads it at its own index; all between is inlined."""
    left = _Slice.of(c.left, "left", c.batch, tile.rows, tile.depth)
    right = _Slice.of(c.right, "right", c.batch, tile.columns, tile.depth)
    chunk, k = te.reduce_axis((0, left.chunks), name="chunk"), te.reduce_axis((0, _SIDE), name="k")

    def element(b: Any, i: Any, j: Any, g: Any, t: Any, half: Any, e: Any) -> PrimExpr:
        factors = left.at(b, i * 2 + half, g, chunk, k), right.at(b, j, t * 2 + e, chunk, k)
        return te.sum(te.cast(c.wide, factors[0]) * te.cast(c.wide, factors[1]), axis=[chunk, k])

    tiles = as_dim(left.groups // (ROWS // _SIDE)), as_dim(right.groups // (COLUMNS // _SIDE))
    product = te.compute((c.batch, *tiles, _SIDE, WARP_COLUMNS, 2, 2), element, name="product")
    scope = "shared" if tile.shared_bytes(left.view.dtype.nbytes) <= STATIC_SHARED_BYTES else "shared.dyn"
    schedule_sums(s, out, c, tile, product, scope)

    stage, chunks = s[product], tile.depth // _SIDE
    stage.set_scope("local")
    _, i, j, *inside = stage.op.axis
    step, part = stage.split(chunk, factor=chunks)
    stage.reorder(step, i, j, *inside, part, k)
    stage.tensorize(j, multiply_slice(instruction, COLUMNS * tile.tiles[1], chunks, left.turned, right.turned))
    for operand in (left, right):
        s[operand.view].set_scope(scope)
        s[operand.view].compute_at(stage, step)
        s[operand.view].pipeline(tile.stages)
        operand.copy(s, tile.threads)
