"""Products of bytes and of bfloat16 with AMX tiles, which have eight times the multipliers of two vector units.

A tile of sums is 16 rows by 16 columns of int32 or float32. An instruction adds to it the product of a tile of the left
operand, 16 rows of 16 words, by one of the right: 16 rows of 16 words, as they lie in a panel. A word is four unsigned
bytes, on the right signed ones, or two bfloat16. Two tiles of the left operand and two of the right are multiplied at a
time, each by each. (Intel's Software Developer's Manual, volume 1, chapter 18.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import (
    Buffer,
    BufferLoad,
    Evaluate,
    For,
    ForKind,
    Min,
    PrimExpr,
    Stmt,
    Var,
    call_intrin,
    const,
    convert,
    decl_buffer,
    seq,
)
from relayc.te.tir.ops import floordiv, floormod
from relayc.topi.cpu.common import local_accumulator, operands, panel_width, parallel, split_columns, vectorize_runs
from relayc.topi.cpu.convolution.windows import (
    feeding_pads,
    feeding_windows,
    schedule_pad,
    schedule_windows,
    vectorize_windows,
)
from relayc.topi.cpu.products.store_order import StoreOrder
from relayc.topi.cpu.tiling import amx_panel, has_amx, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.nn.dot4 import DOTS
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["TilePlan", "plan_tiles", "schedule_tiles"]

_ROWS, _LANES, _WORD_BYTES = 16, 16, 4
_INSTRUCTIONS = {"dot4": "amx_dot_bytes", "dot2_bfloat16": "amx_dot_bfloat16"}
"""Products of tiles, by the form of a product."""
_TILE_ROWS = 8
"""Fixed cost of each pair of tiles, in rows of tiles."""
_DYNAMIC_ROWS = 128
"""Rows whose tiles prefetch the next panel where the number of rows is dynamic."""
_STEPS_AT_ONCE, _OPERATIONS_BEHIND = 8, 8
"""Words that the tiles multiply while vectors do an operation, and operations for each sum afterwards."""
_BLOCK_SHARE = 1 / 4
"""Part of the L2 cache for the rows of the left operand that all panels are multiplied with at a time."""


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Pairs of tiles of `height` rows, `depth` words of the reduction at a time, in blocks of rows."""

    height: int
    depth: int
    block: int = 0
    """rows that all panels are multiplied with before the next ones; 0 for all, where their number is dynamic"""
    shares_rows: bool = False
    """threads share blocks of rows; otherwise panels"""


def plan_tiles(out: te.Tensor, anchor: te.Operation, target: Target) -> TilePlan | None:
    """How AMX computes the product of `anchor`, up to `out`; None where it is not used."""
    order, form = StoreOrder.of(out), anchor.attrs.get("form", "fma")
    if not has_amx(target, form) or order.is_transposed:
        return None
    extents = [extent_of(axis) for axis in (*anchor.axis, *anchor.reduce_axis)]
    left = operands(anchor)[0]
    if len(extents) != 3 or left.ndim != 2 or not all(isinstance(d, int) for d in extents[1:]):
        return None
    rows, columns, steps = [constant_size([d]) for d in extents]
    panel, depth = amx_panel(target, rows, columns, steps, form)
    if panel != panel_width(anchor) or not choose("AMX", True, (True, False)):
        return None
    if not isinstance(extents[0], int):
        return TilePlan(2 * _ROWS, depth)
    height = min(range(1, min(2 * _ROWS, rows) + 1), key=lambda h: (math.ceil(rows / h) * (h + _TILE_ROWS), -h))
    shares_rows, cores = rows >= columns, target.num_cores
    blocks = math.ceil(_WORD_BYTES * rows * steps / (_BLOCK_SHARE * target.cache_bytes.l2))
    if shares_rows:
        blocks = math.ceil(blocks / cores) * cores
    tiles = math.ceil(rows / height)
    return TilePlan(height, depth, min(math.ceil(tiles / blocks) * height, rows), shares_rows)


def schedule_tiles(outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: TilePlan) -> te.Schedule:
    """Threads share blocks of rows, or panels. The sums of a pair of tiles are in memory for the epilogue."""
    s, out = te.create_schedule([o.op for o in outs]), outs[0]
    windows, pads = feeding_windows(anchor), feeding_pads(outs, anchor)
    inline_injective(s, outs, keep=[anchor, *windows, *pads])
    for pad in pads:
        schedule_pad(s, pad, target)
    sums = local_accumulator(s, anchor, out)
    s[sums].set_scope("global")
    block, tile = _loops(s, out, anchor, target, plan, apart=bool(windows) and plan.shares_rows)
    s[sums].compute_at(s[out], tile)
    (m, n), (k,) = s[sums].op.axis, s[sums].op.reduce_axis
    s[sums].reorder(m, n, k)
    panel, steps = panel_width(anchor), constant_size([extent_of(k)])
    tiles = -(-(plan.block or _DYNAMIC_ROWS) // plan.height) if constant_size(sums.shape[-1:]) > panel else 0
    s[sums].tensorize(m, _multiply(anchor.attrs["form"], plan.height, panel, steps, plan.depth, tiles))
    for op in windows:
        if plan.shares_rows:
            vectorize_windows(s, op, target)
            s[op].compute_at(s[out], block)
        else:
            schedule_windows(s, op, target)
    return s


def _loops(
    s: te.Schedule, out: te.Tensor, anchor: te.Operation, target: Target, plan: TilePlan, *, apart: bool
) -> tuple[te.IterVar, te.IterVar]:
    """The parallel loop, over blocks where these are to be `apart`, and the loop that a tile is inside of."""
    order, panel, lanes = StoreOrder.of(out), panel_width(anchor), vector_lanes(target)
    row, column = order.loops(s, out)
    blocks = list[te.IterVar]()
    if plan.block:
        block, row = s[out].split(row, factor=plan.block, tail="shift")
        blocks.append(block)
    tile, row = s[out].split(row, factor=plan.height, tail="shift")
    (panels,), column = split_columns(s, out, column, order.result.shape[-1], panel, panel)
    s[out].reorder(*blocks, panels, tile, row, column)
    if blocks and not apart:
        tile = s[out].fuse(*blocks, panels, tile)
        shared = tile
    else:
        shared = blocks[0] if blocks else panels
    rows, columns, steps = [constant_size([extent_of(axis)]) for axis in (*anchor.axis, *anchor.reduce_axis)]
    parallel(s, out, shared, rows * columns * (steps / _STEPS_AT_ONCE + _OPERATIONS_BEHIND), lanes)
    vectorize_runs(s, out, column, panel, lanes, order.run)
    return shared, tile


@cache
def _multiply(form: str, rows: int, width: int, steps: int, depth: int, tiles: int) -> te.TensorIntrin:
    """`rows` rows, up to 32, times a panel of `width`, 16 or 32, `depth` of the `steps` at a time.

    The next panel is prefetched meanwhile, in equal shares by all `tiles` of a block; 0: there is none.
    """
    left = te.placeholder((rows, steps), "int32", name="left")
    right = te.placeholder((1, steps, width), "int32", name="right")
    k = te.reduce_axis((0, steps), name="k")

    def element(m: Any, n: Any) -> PrimExpr:
        return te.sum(DOTS[form](left(m, k), right(n // width, k, n % width)), axis=k)

    result = te.compute((rows, width), element, name="product")
    binds = {t: _strided(t) for t in (left, right, result)}

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (left, right), (sums,) = inputs, outputs
        return _product(_INSTRUCTIONS[form], left, right, sums, depth, tiles)

    return te.decl_tensor_intrin(result.op, emit, f"multiply_{form}_{rows}x{width}x{steps}", binds=binds)


def _strided(tensor: te.Tensor) -> Buffer:
    strides = [*[Var(f"{tensor.name}_stride{i}") for i in range(tensor.ndim - 1)], 1]
    return decl_buffer(tensor.shape, str(tensor.dtype), tensor.name, strides=strides, elem_offset=Var("offset"))


def _product(instruction: str, left: Buffer, right: Buffer, sums: Buffer, depth: int, tiles: int) -> Stmt:
    """Tiles 0 to 3 are sums, 4 and 5 of the left operand, 6 and 7 of the right."""
    (rows, steps), width = [constant_size([d]) for d in left.shape], constant_size(right.shape[-1:])
    upper = rows if rows <= _ROWS else -(-rows // 2)
    heights, halves = {0: upper, upper: rows - upper} if upper < rows else {0: rows}, range(width // _LANES)
    shapes, line = [(0, 0)] * 8, _LANES * _WORD_BYTES
    chunk = Var("chunk")
    k = chunk * depth
    stores, update = list[Stmt](), list[Stmt]()
    for a, (first, height) in enumerate(heights.items()):
        shapes[4 + a] = (height, _WORD_BYTES * depth)
        update.append(_call("amx_load", 4 + a, _address(left, first, k), _row_stride(left)))
        for b in halves:
            shapes[2 * a + b] = (height, line)
            stores.append(_call("amx_store", 2 * a + b, _address(sums, first, b * _LANES), _row_stride(sums)))
    for b in halves:
        shapes[6 + b] = (depth, line)
        update.append(_call("amx_load", 6 + b, _address(right, 0, k, b * _LANES), _row_stride(right)))
        update += [_call(instruction, 2 * a + b, 4 + a, 6 + b) for a in range(len(heights))]
    if tiles:
        tile = floormod(floordiv(left.elem_offset, rows * steps), tiles)
        update += _fetch_next(right, tile * (steps // depth) + chunk, -(-depth * len(halves) // tiles))
    return seq(
        _call("amx_configure", *[n for shape in shapes for n in shape]),
        *[_call("amx_zero", 2 * a + b) for a in range(len(heights)) for b in halves],
        For(chunk, const(0), const(steps // depth), ForKind.SERIAL, seq(*update)),
        *stores,
    )


def _fetch_next(right: Buffer, step: PrimExpr, lines: int) -> list[Stmt]:
    """Prefetch some lines of the next panel, others in each step, to the L2 cache."""
    last = constant_size(right.shape) // _LANES - 1
    places = [Min(step * lines + i, const(last)) * _LANES for i in range(lines)]
    return [_call("prefetch", _address(right, 1, 0, place), 2, 0) for place in places]


def _call(name: str, *args: Any) -> Stmt:
    return Evaluate(call_intrin("int32", name, *args))


def _address(buffer: Buffer, *index: Any) -> PrimExpr:
    return call_intrin("handle", "address_of", BufferLoad(buffer, tuple([convert(i) for i in index])))


def _row_stride(buffer: Buffer) -> PrimExpr:
    """Bytes from one row to the next."""
    assert buffer.strides is not None
    return convert(buffer.strides[-2]) * buffer.dtype.nbytes
