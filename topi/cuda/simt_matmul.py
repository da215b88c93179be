"""Matrix products on CUDA cores (SIMT), with tiles in shared memory and in registers.

A block computes a tile of the product. In each step along the depth it copies a slice of both operands to shared
memory, depth-major, several steps ahead of use; each thread keeps its part of the tile in registers and reads its
operands as vectors of up to four rows and columns. The parts of a thread are half a tile apart, so that the lanes of a
warp, four down and eight across, read shared memory contiguously. The epilogue runs on the registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.tir import Dim, IterVar, PrimExpr, as_dim
from relayc.topi.cuda.common import bind_tiles, thread_axis
from relayc.topi.cuda.contraction import Contraction, Operand, within, zero_filled
from relayc.topi.cuda.cost import VECTOR_BYTES
from relayc.topi.cuda.product_tiles import BANKS, LANES, SimtTile
from relayc.topi.utils import ceil_div

__all__ = ["schedule_simt"]


@dataclass(frozen=True, slots=True)
class _Slice:
    """An operand as a tensor (batch, depth, rows or columns), and its copy to shared memory.

    Vectors of `width` elements contiguous `along` "free" (rows or columns) or "depth" are copied; of packed "words",
    single elements.
    """

    view: te.Tensor
    along: str
    width: int

    @staticmethod
    def of(operand: Operand, name: str, batch: Dim, tile: int, depth: int) -> _Slice:
        """The operand padded with zeros to whole tiles of `tile` rows or columns and `depth` products."""
        along, width = operand.copy_direction(VECTOR_BYTES // operand.value.dtype.nbytes)
        if along != "free":
            width = 1  # contiguous elements go to different rows of the slice
        free_size, depth_size = operand.free_size, operand.depth_size

        def body(b: Any, k: Any, f: Any) -> PrimExpr:
            inside = (*within(k, depth_size, depth, 1), *within(f, free_size, tile, width))
            return zero_filled(operand.at(b, f, k), *inside)

        shape = (batch, as_dim(ceil_div(depth_size, depth) * depth), as_dim(ceil_div(free_size, tile) * tile))
        return _Slice(te.compute(shape, body, name=name), along, width)

    def copy(self, s: te.Schedule, threads: int) -> None:
        """Copy a slice by all threads, adjacent elements of memory by adjacent threads."""
        stage = s[self.view]
        _, k, f = stage.op.axis
        if self.along == "depth":  # lanes store along a column: offset the rows' banks
            stage.storage_align(k, BANKS, VECTOR_BYTES // 4)
            stage.reorder(f, k)
            loop = stage.fuse(f, k)
        elif self.width > 1:
            f, lanes = stage.split(f, factor=self.width)
            loop = stage.fuse(k, f)
            stage.vectorize(lanes)
        else:
            loop = stage.fuse(k, f)
        rest, thread = stage.split(loop, factor=threads)
        stage.bind(thread, thread_axis(threads))
        stage.unroll(rest)


def _split_tile(
    s: te.Schedule, out: te.Tensor, axis: IterVar, size: Dim, warps: int, lanes: int, parts: int, elements: int
) -> tuple[IterVar, IterVar, IterVar, IterVar, IterVar]:
    """Split rows or columns of the output into (tile, part, warp, lane, element), under one guard.

    The guard is for whole groups of elements if they divide `size`.
    """
    stage = s[out]
    if isinstance(size, int) and size % elements == 0:
        axis, element = stage.split(axis, factor=elements, tail="predicate")
        tile, rest = stage.split(axis, factor=parts * warps * lanes, tail="predicate")
    else:
        tile, rest = stage.split(axis, factor=parts * warps * lanes * elements, tail="predicate")
        rest, element = stage.split(rest, factor=elements)
    part, rest = stage.split(rest, factor=warps * lanes)
    warp, lane = stage.split(rest, factor=lanes)
    return tile, part, warp, lane, element


def _tile_output(s: te.Schedule, out: te.Tensor, c: Contraction, tile: SimtTile) -> IterVar:
    """Bind blocks, threads and parts over the output; returns the loop whose iterations are the threads."""
    batch, rows, columns = c.loops(s, out)
    stage = s[out]
    (down, across), (rows_each, columns_each) = tile.parts, tile.vector
    i, i_part, i_warp, i_lane, i_element = _split_tile(s, out, rows, c.rows, tile.warps[0], LANES[0], down, rows_each)
    j, j_part, j_warp, j_lane, j_element = _split_tile(
        s, out, columns, c.columns, tile.warps[1], LANES[1], across, columns_each
    )
    stage.reorder(batch, i, j, i_warp, j_warp, i_lane, j_lane, i_part, j_part, i_element, j_element)
    thread = stage.fuse(i_warp, j_warp, i_lane, j_lane)
    bind_tiles(stage, batch, i, j, ceil_div(c.rows, tile.rows))
    stage.bind(thread, thread_axis(tile.threads))
    stage.bind(i_part, te.thread_axis("vthread", name="part_y"))
    stage.bind(j_part, te.thread_axis("vthread", name="part_x"))
    stage.unroll(i_element)
    if isinstance(c.columns, int) and c.columns % columns_each == 0:
        stage.vectorize(j_element)
    else:
        stage.unroll(j_element)
    return thread


def schedule_simt(s: te.Schedule, out: te.Tensor, c: Contraction, tile: SimtTile) -> None:
    """Schedule contraction `c` and the output `out` that reads it at its own index; all between is inlined."""
    left = _Slice.of(c.left, "left", c.batch, tile.rows, tile.depth)
    right = _Slice.of(c.right, "right", c.batch, tile.columns, tile.depth)
    product = c.rewrite(s, left.view, right.view)
    if s[out] is not s[c.op]:
        s[c.op].compute_inline()
    thread = _tile_output(s, out, c, tile)

    s[product].set_scope("local")
    s[product].compute_at(s[out], thread)
    _, i, j = s[product].op.axis
    step, k = s[product].split(s[product].op.reduce_axis[0], factor=tile.depth)
    s[product].reorder(step, k, i, j)
    for axis in (k, i, j):
        s[product].unroll(axis)
    for operand in (left, right):
        registers = s.cache_read(operand.view, "local", [product])
        s[registers].compute_at(s[product], k)
        s[registers].vectorize(s[registers].op.axis[-1])
        s[operand.view].set_scope("shared")
        s[operand.view].compute_at(s[product], step)
        s[operand.view].pipeline(tile.stages)
        operand.copy(s, tile.threads)
