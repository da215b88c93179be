"""Matrix products on tensor cores by `mma.sync`: tiles in shared memory, fragments and accumulators in registers.

A block copies slices of both operands to shared memory, in their memory order, several steps ahead (multi-stage
pipelining). Each warp computes a part of the tile; for every 32 bytes of depth it loads the fragments of its rows and
columns and multiplies all pairs. Rows of a slice are padded so that the eight rows of a fragment lie in different
banks. The accumulators pass through the shared memory of the slices to the epilogue, in which threads access whole
lines of memory in a loop of few instructions, whatever the tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.tir import Dim, IterVar, PrimExpr, as_dim
from relayc.topi.cuda.common import bind_tiles, thread_axis
from relayc.topi.cuda.contraction import Contraction, Operand, within, zero_filled
from relayc.topi.cuda.cost import VECTOR_BYTES
from relayc.topi.cuda.product_tiles import BANKS, STATIC_SHARED_BYTES, MmaTile, WgmmaTile
from relayc.topi.cuda.tensor_core import COLUMNS, ROWS, WARP_COLUMNS, Multiply, load_left, load_right, multiply
from relayc.topi.utils import ceil_div

__all__ = ["schedule_mma", "schedule_sums"]

_GROUP = 4
"""Columns that a thread computes together in the epilogue: 16 bytes of accumulators."""
_TOGETHER = 4 * _GROUP
"""Columns that a thread has in flight in the epilogue."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """An operand as (batch, tile, parts..., depth), or if `transposed` (batch, depth, tile, parts...).

    `parts` are the sizes of (half, g) or (t, e), which index a row or column of a tile. Vectors of `width` elements
    contiguous `along` "free" or "depth" are copied, those of packed "words" by threads of adjacent rows or columns.
    Slices keep the order of memory, except for elements of other than two bytes, which `ldmatrix` can't transpose.
    """

    view: te.Tensor
    parts: tuple[int, int]
    transposed: bool
    along: str
    width: int

    @staticmethod
    def of(operand: Operand, name: str, batch: Dim, tile: int, depth: int, parts: tuple[int, int]) -> _Slice:
        """The operand padded with zeros to whole tiles of `tile` rows or columns and `depth` products."""
        nbytes = operand.value.dtype.nbytes
        along, width = operand.copy_direction(VECTOR_BYTES // nbytes)
        transposed = along == "free" and nbytes == 2
        if along == "free" and not transposed:
            width = 1
        free_size, depth_size = operand.free_size, operand.depth_size
        each = parts[0] * parts[1]

        def body(b: Any, *i: Any) -> PrimExpr:
            (k, *free), k_width, f_width = (i, 1, width) if transposed else ((i[-1], *i[:-1]), width, 1)
            f = (free[0] * parts[0] + free[1]) * parts[1] + free[2]
            inside = (*within(k, depth_size, depth, k_width), *within(f, free_size, tile, f_width))
            return zero_filled(operand.at(b, f, k), *inside)

        tiles, steps = as_dim(ceil_div(free_size, tile) * (tile // each)), as_dim(ceil_div(depth_size, depth) * depth)
        free_shape = (tiles, *parts)
        shape = (batch, steps, *free_shape) if transposed else (batch, *free_shape, steps)
        return _Slice(te.compute(shape, body, name=name), parts, transposed, along, width)

    def at(self, b: Any, tile: Any, first: Any, second: Any, k: Any) -> PrimExpr:
        """The element at position `k` of row or column (tile, first, second)."""
        return self.view(b, k, tile, first, second) if self.transposed else self.view(b, tile, first, second, k)

    def copy(self, s: te.Schedule, threads: int) -> None:
        """Copy a slice by all threads, adjacent elements of memory by adjacent threads."""
        stage = s[self.view]
        unit = VECTOR_BYTES // self.view.dtype.nbytes
        if self.transposed:
            _, k, *free = stage.op.axis
            stage.storage_align(k, 2 * unit, unit)
            inner, outer = stage.fuse(*free), k
        else:
            _, *free, inner = stage.op.axis
            stage.storage_align(free[-1], 2 * unit, unit)
            outer = stage.fuse(*free)
            if self.along == "free":
                stage.reorder(inner, outer)
                inner, outer = outer, inner
        if self.width > 1:
            inner, lanes = stage.split(inner, factor=self.width)
            stage.vectorize(lanes)
        if self.along == "words":
            stage.reorder(inner, outer)
            inner, outer = outer, inner
        rest, thread = stage.split(stage.fuse(outer, inner), factor=threads)
        stage.bind(thread, thread_axis(threads))
        stage.unroll(rest)


def _fragments(source: _Slice, name: str, depth: int, swapped: bool) -> te.Tensor:
    """(batch, step of depth, tile, shared part, own part, k): the fragments that the threads of a warp load from a
    slice.

    The shared part (g of a row, t of a column) is distributed over the lanes, one value each, while a thread has all of
    the other part; `swapped` means that the shared part comes second in a slice.
    """
    batch, first, second = source.view.shape[0], *source.parts
    tiles, steps = (source.view.shape[2], source.view.shape[1]) if source.transposed else source.view.shape[1::3]
    lanes, own = (second, first) if swapped else (first, second)

    def body(b: Any, step: Any, tile: Any, lane: Any, each: Any, k: Any) -> PrimExpr:
        parts = (each, lane) if swapped else (lane, each)
        return source.at(b, tile, *parts, step * depth + k)

    return te.compute((batch, as_dim(steps // depth), tiles, lanes, own, depth), body, name=name)


def _tile_output(s: te.Schedule, out: te.Tensor, c: Contraction, tile: MmaTile) -> IterVar:
    """Bind blocks over the output, whose threads take adjacent groups of columns; returns the loop that is one
    block."""
    batch, rows, columns = c.loops(s, out)
    stage = s[out]
    i, row = stage.split(rows, factor=tile.rows, tail="predicate")
    width = _GROUP if isinstance(c.columns, int) and c.columns % _GROUP == 0 else 1
    if width > 1:
        columns, lanes = stage.split(columns, factor=width, tail="predicate")
        stage.vectorize(lanes)
    j, column = stage.split(columns, factor=tile.columns // width, tail="predicate")
    stage.reorder(batch, i, j, row, column)
    bind_tiles(stage, batch, i, j, ceil_div(c.rows, tile.rows))
    iteration, thread = stage.split(stage.fuse(row, column), factor=tile.threads)
    stage.bind(thread, thread_axis(tile.threads))
    most = tile.rows * tile.columns // width // tile.threads
    iterations, together = stage.split(iteration, factor=min(_TOGETHER // width, most))
    stage.unroll(together)
    stage.pragma(iterations, "loop_partition_hint", True)  # little code: iterations inside the matrix need no guards
    return j


def _tile_sums(s: te.Schedule, sums: te.Tensor, tile: MmaTile) -> IterVar:
    """Bind warps and lanes over the accumulators of a block; returns the loop whose iterations are the threads."""
    stage = s[sums]
    _, rows, columns = stage.op.axis
    stage.storage_align(rows, BANKS, 2 * WARP_COLUMNS)  # eight rows of four pairs cover all banks twice
    rest, e = stage.split(columns, factor=2)
    rest, t = stage.split(rest, factor=WARP_COLUMNS)
    j_warp, j_tile = stage.split(rest, factor=tile.tiles[1])
    rest, g = stage.split(rows, factor=8)
    rest, half = stage.split(rest, factor=2)
    if isinstance(tile, WgmmaTile):
        i_tile, i_warp = stage.split(rest, factor=4)  # the warps of a group are stacked along the rows
        group, i_tile = stage.split(i_tile, factor=tile.tiles[0])
        warps = [group, j_warp, i_warp]
    else:
        i_warp, i_tile = stage.split(rest, factor=tile.tiles[0])
        warps = [i_warp, j_warp]
    stage.reorder(*warps, g, t, i_tile, half, j_tile, e)
    thread = stage.fuse(*warps, g, t)
    stage.bind(thread, thread_axis(tile.threads))
    for axis in (i_tile, half, j_tile):
        stage.unroll(axis)
    stage.vectorize(e)
    return thread


def schedule_sums(
    s: te.Schedule, out: te.Tensor, c: Contraction, tile: MmaTile, product: te.Tensor, sums: te.Tensor, scope: str
) -> None:
    """Make contraction `c` and the output `out` read `sums`, (batch, rows, columns), in memory of `scope`.

    They are copied from the threads' registers, where they are computed as `product`.
    """
    result = c.op.output(0)
    view = te.compute(result.shape, lambda *i: sums(*c.position(i)), name=c.op.name, tag=c.op.tag)
    s.recompute(result, view)
    if s[out] is not s[c.op]:
        s[c.op].compute_inline()
    s[sums].set_scope(scope)
    s[sums].compute_at(s[out], _tile_output(s, out, c, tile))
    s[product].compute_at(s[sums], _tile_sums(s, sums, tile))


def schedule_mma(s: te.Schedule, out: te.Tensor, c: Contraction, tile: MmaTile, instruction: Multiply) -> None:
    """Schedule contraction `c` and the output `out` that reads it at its own index; all between is inlined."""
    left = _Slice.of(c.left, "left", c.batch, tile.rows, tile.depth, (2, 8))
    right = _Slice.of(c.right, "right", c.batch, tile.columns, tile.depth, (WARP_COLUMNS, 2))
    depth = instruction.depth
    rows, columns = _fragments(left, "rows", depth, True), _fragments(right, "columns", depth, False)
    step = te.reduce_axis((0, rows.shape[1]), name="step")
    k = te.reduce_axis((0, depth), name="k")

    def element(b: Any, i: Any, j: Any, g: Any, t: Any, half: Any, e: Any) -> PrimExpr:
        factors = rows(b, step, i, g, half, k), columns(b, step, j, t, e, k)
        return te.sum(te.cast(c.wide, factors[0]) * te.cast(c.wide, factors[1]), axis=[step, k])

    shape = (c.batch, rows.shape[2], columns.shape[2], 8, WARP_COLUMNS, 2, 2)
    product = te.compute(shape, element, name="product")
    scope = "shared" if tile.shared_bytes(left.view.dtype.nbytes) <= STATIC_SHARED_BYTES else "shared.dyn"

    def unpacked(b: Any, i: Any, j: Any) -> PrimExpr:
        return product(b, i // ROWS, j // COLUMNS, i % 8, j % COLUMNS // 2, i % ROWS // 8, j % 2)

    sizes = (c.batch, as_dim(rows.shape[2] * ROWS), as_dim(columns.shape[2] * COLUMNS))
    schedule_sums(s, out, c, tile, product, te.compute(sizes, unpacked, name="sums"), scope)
    outer, inner = _multiply_fragments(s[product], tile, instruction)
    for operand in (left, right):
        s[operand.view].set_scope(scope)
        s[operand.view].compute_at(s[product], outer)
        s[operand.view].pipeline(tile.stages)
        operand.copy(s, tile.threads)
    ahead = tile.depth > depth
    together = 2 if tile.tiles[1] % 2 == 0 else 1
    _load_fragments(s[rows], s[product], inner, 1, load_left(instruction, left.transposed), ahead)
    _load_fragments(s[columns], s[product], inner, together, load_right(instruction, right.transposed, together), ahead)


def _multiply_fragments(product: te.Stage, tile: MmaTile, instruction: Multiply) -> tuple[IterVar, IterVar]:
    """Multiply all pairs of fragments for every 32 bytes of depth; returns the loops over slices and parts of a
    slice."""
    product.set_scope("local")
    _, i, j, g, t, half, e = product.op.axis
    step, k = product.op.reduce_axis
    outer, inner = product.split(step, factor=tile.depth // instruction.depth)
    product.reorder(outer, inner, i, j, g, t, half, e, k)
    for axis in (inner, i, j):
        product.unroll(axis)
    product.tensorize(g, multiply(instruction))
    return outer, inner


def _load_fragments(
    stage: te.Stage, product: te.Stage, loop: IterVar, together: int, load: te.TensorIntrin, ahead: bool
) -> None:
    """Load fragments of `together` tiles at once into registers; `ahead`: double-buffered."""
    stage.set_scope("local")
    stage.compute_at(product, loop)
    _, _, tile, lane, *_ = stage.op.axis
    first = lane
    if together > 1:
        tile, first = stage.split(tile, factor=together)
    stage.unroll(tile)
    stage.tensorize(first, load)
    if ahead:
        stage.pipeline(2)
