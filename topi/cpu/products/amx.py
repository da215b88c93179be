"""Products of bytes and of bfloat16 with AMX tiles, which have eight times the multipliers of two vector units.

A tile of sums is 16 rows by 16 columns of int32 or float32. An instruction adds to it the product of a tile of the left
operand, 16 rows of 16 words, by one of the right: 16 rows of 16 words, as they lie in a panel. A word is four unsigned
bytes, on the right signed ones, or two bfloat16. Two tiles of the left operand and two of the right are multiplied at a
time, each by each. (Intel's Software Developer's Manual, volume 1, chapter 18.)

The windows of a convolution are rows of a matrix. Those of neighbouring pixels on a line are a constant number of words
apart, so tiles read them where they are in the image if they don't reach over the end of a line; otherwise they are
copied first (im2col).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, note
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
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.products.panel_prefetch import LEAST_PIECE, PIECES
from relayc.topi.cpu.products.store_order import StoreOrder
from relayc.topi.cpu.tiling import amx_panel, has_amx, vector_lanes, weights_stay
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.nn.dot4 import DOTS
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["TilePlan", "plan_tiles", "schedule_tiles", "tile_plans"]

_ROWS, _LANES, _WORD_BYTES = 16, 16, 4
_FEWEST_IN_PLACE, _SHORTEST_LINE = 13, 10
"""Fewest pixels of a line that a pair of tiles may have, so that reading windows in place costs less than copies, or
that each of two tiles may."""
_INSTRUCTIONS = {"dot4": "amx_dot_bytes", "dot2_bfloat16": "amx_dot_bfloat16"}
"""Products of tiles, by the form of a product."""
_TILE_ROWS = 8
"""Fixed cost of each pair of tiles, in rows of tiles."""
_DYNAMIC_TILES = 4
"""Pairs of tiles that prefetch the next panel where the number of rows is dynamic; of few rows one does."""
_STEPS_AT_ONCE, _OPERATIONS_BEHIND = 8, 8
"""Words that the tiles multiply while vectors do an operation, and operations for each sum afterwards."""
_BLOCK_SHARE, _BLOCK_SHARE_OF_WINDOWS = 1 / 2, 1 / 4
"""Parts of the L2 cache for the rows of the left operand that all panels are multiplied with at a time; for windows,
which are written there first."""


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Pairs of tiles of `height` rows, `depth` words of the reduction at a time, in blocks of rows."""

    height: int
    depth: int
    block: int = 0
    """rows that all panels are multiplied with before the next ones; 0 for all, where their number is dynamic"""
    shares_rows: bool = False
    """threads share blocks of rows; otherwise panels"""
    window: _Window | None = None
    """the windows that the rows are read from in place"""


@dataclass(frozen=True, slots=True)
class _Window:
    """Windows of `kernel` pixels of `channels` words, `strides` pixels apart, on lines of `line` results."""

    kernel: tuple[int, int]
    channels: int
    strides: tuple[int, int]
    dilation: tuple[int, int]
    line: int

    @property
    def run(self) -> int:
        """Contiguous words."""
        return self.channels * (self.kernel[1] if self.dilation[1] == 1 else 1)

    @property
    def steps(self) -> int:
        """Words of a window."""
        return math.prod(self.kernel) * self.channels

    def image(self, rows: int) -> tuple[int, int, int]:
        """Lines, pixels and channels that the windows of `rows` neighbouring results cover."""
        reach = [(n - 1) * d + 1 for n, d in zip(self.kernel, self.dilation, strict=True)]
        results = max(rows // self.line, 1), min(rows, self.line)
        lines, pixels = [r + (n - 1) * s for r, n, s in zip(reach, results, self.strides, strict=True)]
        return lines, pixels, self.channels

    def place(self, row: Any, k: Any, rows: int) -> tuple[Any, Any, Any]:
        """Where in the image of `rows` results word `k` of the window of `row` is."""
        (_, taps), (down, across) = self.kernel, self.dilation
        tap = floordiv(k, self.channels)
        on_lines = rows > self.line
        line, pixel = (floordiv(row, self.line), floormod(row, self.line)) if on_lines else (0, row)
        line = line * self.strides[0] + floordiv(tap, taps) * down
        return line, pixel * self.strides[1] + floormod(tap, taps) * across, floormod(k, self.channels)


def _window_in_place(anchor: te.Operation) -> tuple[_Window, int] | None:
    """The windows that tiles can read in place, and the results of a pair of tiles; None if there are none.

    They are on one line, or each tile has a short line.
    """
    windows = feeding_windows(anchor)
    if not windows:
        return None
    attrs, image = windows[0].attrs, windows[0].input_tensors[0]
    channels, (*_, lines, line) = image.shape[-1], attrs["grid"]
    if not (isinstance(lines, int) and isinstance(line, int) and isinstance(channels, int)):
        return None
    height = max(n for n in range(1, 2 * _ROWS + 1) if line % n == 0)
    if _SHORTEST_LINE <= height == line <= _ROWS and lines % 2 == 0:
        height *= 2
    if height < _FEWEST_IN_PLACE:
        return None
    kernel, strides, dilation = [(attrs[name][0], attrs[name][1]) for name in ("kernel", "strides", "dilation")]
    return _Window(kernel, channels, strides, dilation, line), height


def plan_tiles(out: te.Tensor, anchor: te.Operation, target: Target) -> TilePlan | Refused:
    """How AMX computes the product of `anchor`, up to `out`; refused where it is not used."""
    order, form = StoreOrder.of(out), anchor.attrs.get("form", "fma")
    if not has_amx(target, form):
        return Refused(f"the target has no AMX for products in the form {form!r}")
    if order.is_transposed:
        return Refused("results are stored transposed")
    extents = [extent_of(axis) for axis in (*anchor.axis, *anchor.reduce_axis)]
    left = operands(anchor)[0]
    if len(extents) != 3 or left.ndim != 2 or not all(isinstance(d, int) for d in extents[1:]):
        return Refused("no product of two matrices of a static number of columns and steps")
    rows, columns, steps = [constant_size([d]) for d in extents]
    panel, depth = amx_panel(target, rows, columns, steps, form)
    if panel != panel_width(anchor):
        return Refused(f"panels of {panel_width(anchor)} columns; AMX takes {panel} (0: vectors are faster)")
    if not choose("AMX", True, (True, False)):
        return Refused("tuning found vectors faster")
    if not isinstance(extents[0], int):
        return TilePlan(2 * _ROWS, depth)
    height = min(range(1, min(2 * _ROWS, rows) + 1), key=lambda h: (math.ceil(rows / h) * (h + _TILE_ROWS), -h))
    shares_rows, cores = rows >= columns, target.num_cores

    def tiles_of_a_block(height: int, words: int, share: float) -> int:
        blocks = math.ceil(_WORD_BYTES * words / (share * target.cache_bytes.l2))
        if shares_rows:
            blocks = math.ceil(blocks / cores) * cores
        return math.ceil(math.ceil(rows / height) / blocks)

    found = _window_in_place(anchor)
    if found is not None and amx_panel(target, rows, columns, found[0].run, form)[0]:
        window, pixels = found
        most = tiles_of_a_block(pixels, rows * window.channels * math.prod(window.strides), _BLOCK_SHARE)
        tiles = max(n for n in range(1, most + 1) if rows // pixels % n == 0)
        if 2 * tiles >= most:
            depth = amx_panel(target, rows, columns, window.run, form)[1]
            return TilePlan(pixels, depth, tiles * pixels, shares_rows, window)
    tiles = tiles_of_a_block(height, rows * steps, _BLOCK_SHARE_OF_WINDOWS if feeding_windows(anchor) else _BLOCK_SHARE)
    passing = _WORD_BYTES * rows * steps + out.dtype.nbytes * rows * columns
    if shares_rows and weights_stay(target, _WORD_BYTES * columns * steps, passing):
        tiles = 1
    return TilePlan(height, depth, min(tiles * height, rows), shares_rows)


def tile_plans(plan: TilePlan, fewest: int) -> list[TilePlan]:
    """A plan, followed, where the number of rows is dynamic, by those for less than it takes, down to the `fewest`."""
    halvings = 1 if plan.block else (plan.height // fewest).bit_length()
    return [replace(plan, height=plan.height >> n) for n in range(halvings)]


def schedule_tiles(outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: TilePlan) -> te.Schedule:
    """Threads share blocks of rows, or panels. The sums of a pair of tiles are in memory for the epilogue."""
    note("tiles", "AMX", plan)
    s, out = te.create_schedule([o.op for o in outs]), outs[0]
    windows, pads = feeding_windows(anchor), feeding_pads(outs, anchor)
    inline_injective(s, outs, keep=[anchor, *windows, *pads])
    if plan.window is not None:
        s[windows.pop()].compute_inline()
    for pad in pads:
        schedule_pad(s, pad, target)
    sums = local_accumulator(s, anchor, out)
    s[sums].set_scope("global")
    block, tile = _loops(s, out, anchor, target, plan, apart=bool(windows) and plan.shares_rows)
    s[sums].compute_at(s[out], tile)
    (m, n), (k,) = s[sums].op.axis, s[sums].op.reduce_axis
    s[sums].reorder(m, n, k)
    panel, steps = panel_width(anchor), constant_size([extent_of(k)])
    tiles = -(-plan.block // plan.height) or (_DYNAMIC_TILES if plan.height == 2 * _ROWS else 1)
    tiles = tiles if constant_size(sums.shape[-1:]) > panel else 0
    s[sums].tensorize(m, _multiply(anchor.attrs["form"], plan.height, panel, steps, plan.depth, tiles, plan.window))
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
def _multiply(
    form: str, rows: int, width: int, steps: int, depth: int, tiles: int, window: _Window | None
) -> te.TensorIntrin:
    """`rows` rows, up to 32, times a panel of `width`, 16 or 32, `depth` of the `steps` at a time.

    The next panel is prefetched meanwhile, in equal shares by all `tiles` of a block; 0: there is none. Rows may be
    a `window` of an image each.
    """
    left = te.placeholder((rows, steps) if window is None else window.image(rows), "int32", name="left")
    right = te.placeholder((1, steps, width), "int32", name="right")
    k = te.reduce_axis((0, steps), name="k")

    def element(m: Any, n: Any) -> PrimExpr:
        x = left(m, k) if window is None else left(*window.place(m, k, rows))
        return te.sum(DOTS[form](x, right(n // width, k, n % width)), axis=k)

    result = te.compute((rows, width), element, name="product")
    binds = {t: _strided(t) for t in (left, right, result)}

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (left, right), (sums,) = inputs, outputs
        return _Product(_INSTRUCTIONS[form], rows, left, right, sums, depth, tiles, window).stmt()

    name = f"multiply_{form}_{rows}x{width}x{steps}"
    return te.decl_tensor_intrin(result.op, emit, name, binds=binds)


def _strided(tensor: te.Tensor) -> Buffer:
    strides = [*[Var(f"{tensor.name}_stride{i}") for i in range(tensor.ndim - 1)], 1]
    return decl_buffer(tensor.shape, str(tensor.dtype), tensor.name, strides=strides, elem_offset=Var("offset"))


@dataclass(frozen=True, slots=True)
class _Product:
    """The statements of a pair of tiles of `rows` rows: tiles 0 to 3 are sums, 4 and 5 of the left operand, 6 and 7 of
    the right."""

    instruction: str
    rows: int
    left: Buffer
    right: Buffer
    sums: Buffer
    depth: int
    tiles: int
    window: _Window | None

    def stmt(self) -> Stmt:
        upper = self.rows if self.rows <= _ROWS else -(-self.rows // 2)  # a whole line where there are two
        heights = {0: upper, upper: self.rows - upper} if upper < self.rows else {0: self.rows}
        steps, width = [constant_size([d]) for d in self.right.shape[1:]]
        run = steps if self.window is None else self.window.run
        halves = range(width // _LANES)
        shapes, line = [(0, 0)] * 8, _LANES * _WORD_BYTES
        part, chunk = Var("part"), Var("chunk")
        k = part * run + chunk * self.depth
        stores, update = list[Stmt](), list[Stmt]()
        for a, (first, height) in enumerate(heights.items()):
            shapes[4 + a] = (height, _WORD_BYTES * self.depth)
            update.append(_call("amx_load", 4 + a, self._place(first, part, chunk * self.depth), self._row_stride()))
            for b in halves:
                shapes[2 * a + b] = (height, line)
                sums = _address(self.sums, first, b * _LANES)
                stores.append(_call("amx_store", 2 * a + b, sums, _row_stride(self.sums)))
        for b in halves:
            shapes[6 + b] = (self.depth, line)
            right = _address(self.right, 0, k, b * _LANES)
            update.append(_call("amx_load", 6 + b, right, _row_stride(self.right)))
            update += [_call(self.instruction, 2 * a + b, 4 + a, 6 + b) for a in range(len(heights))]
        if self.tiles:
            step = self._tile() * (steps // self.depth) + part * (run // self.depth) + chunk
            update += _fetch_next(self.right, step, -(-self.depth * len(halves) // self.tiles))
        return seq(
            _call("amx_configure", *[n for shape in shapes for n in shape]),
            *[_call("amx_zero", 2 * a + b) for a in range(len(heights)) for b in halves],
            _serial(part, steps // run, _serial(chunk, run // self.depth, seq(*update))),
            *stores,
        )

    def _place(self, row: int, part: PrimExpr, k: PrimExpr) -> PrimExpr:
        """The address of word `k` of a contiguous part of a row."""
        if self.window is None:
            return _address(self.left, row, k)
        line, pixel, _ = self.window.place(row, part * self.window.run, self.rows)
        return _address(self.left, line, pixel, k)

    def _row_stride(self) -> PrimExpr:
        return _row_stride(self.left) * (1 if self.window is None else self.window.strides[1])

    def _tile(self) -> PrimExpr:
        """The number of the pair of tiles in its block, at least of the first image."""
        place = self.left.elem_offset
        if self.window is None:
            size = constant_size(self.left.shape)
            return floormod(floordiv(place + (size - 1), size), self.tiles)  # the last one may be shifted inwards
        assert self.left.strides is not None
        line, pixel, _ = self.left.strides
        lines, pixels = max(self.rows // self.window.line, 1), min(self.rows, self.window.line)
        down, across = self.window.strides
        of_line = floordiv(floormod(place, convert(line)), pixels * across * convert(pixel))
        before = floordiv(place, lines * down * convert(line)) * (self.window.line // pixels)
        return floormod(before + of_line, self.tiles)


def _serial(variable: Var, extent: int, body: Stmt) -> Stmt:
    return For(variable, const(0), const(extent), ForKind.SERIAL, body)


def _fetch_next(right: Buffer, step: PrimExpr, lines: int) -> list[Stmt]:
    """Prefetch some lines of the next panel, others in each step, to the L2 cache: from each of its pieces in turn."""
    size = constant_size(right.shape) // _LANES
    pieces = next((n for n in PIECES if size % n == 0 and size * LINE_BYTES >= n * LEAST_PIECE), 1)
    piece, numbers = size // pieces, [step * lines + i for i in range(lines)]
    places = [floormod(n, pieces) * piece + Min(floordiv(n, pieces), const(piece - 1)) for n in numbers]
    return [_call("prefetch", _address(right, 1, 0, place * _LANES), 2, 0) for place in places]


def _call(name: str, *args: Any) -> Stmt:
    return Evaluate(call_intrin("int32", name, *args))


def _address(buffer: Buffer, *index: Any) -> PrimExpr:
    return call_intrin("handle", "address_of", BufferLoad(buffer, tuple([convert(i) for i in index])))


def _row_stride(buffer: Buffer) -> PrimExpr:
    """Bytes from one row to the next."""
    assert buffer.strides is not None
    return convert(buffer.strides[-2]) * buffer.dtype.nbytes
