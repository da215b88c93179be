"""Products with weights quantised to 4 or 8 bits in blocks on CPUs.

A register tile has two sums for each result: one over a block, of products of codes, and one over all blocks, in which
that is scaled. A single row tile unpacks the codes in registers; for several ones each panel is unpacked once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, first_of, note
from relayc.topi.cpu.common import parallel, vectorize_panel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.products.matmul import place_panels, tile_results, versions
from relayc.topi.cpu.products.panel_prefetch import stream_unpacked
from relayc.topi.cpu.products.plan import TILES_OF_DYNAMIC_ROWS, ProductPlan
from relayc.topi.cpu.products.store_order import StoreOrder
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.tiling import has_few_registers, spare_registers, tile_rows, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule
from relayc.topi.tuning import choose
from relayc.topi.utils import num_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_dense_blocks", "schedule_quantize_blocks"]

_STEPS = 16
"""Most steps of the sum over a block that are unrolled."""
_FEW_ROWS, _FEW_TILES = (8, 6, 4, 3, 2, 1), 3
"""Heights of tiles for few rows, where their number is dynamic: rows of a tile share the unpacking of codes. And the
most of the first that unpack them each for itself. (Zen 5, 1024 x 4096, 4 bits, int8 data: 8, 16 and 24 rows take
0.46, 0.64 and 0.84 of the time of unpacking each panel once; float data 0.4 to 0.6, 0.8 and 0.9.)"""
_PANELS_OF_MANY_ROWS = 2
"""Panels of single vectors that tiles span where several tiles pass over each: an element of the data that is loaded
then serves two products. (An Emerald Rapids without AMX, 128 x 1024 x 2816, 7 x 2 vectors in place of 13 x 1 or 15 x 1:
0.84 of the time with float data, 0.94 with int8 and 8 bits, 0.88 to 0.98 with 4 bits.)"""
_DISTANCE_BYTES = 8192
"""Prefetch distance in bytes, where one tile reads each panel. (Zen 4, int8, a decoder of 168 million weights in huge
pages: one row takes 12 % less time than without, 4 rows 3 to 8 %; with pages of 4 KiB one row takes 3 % more.)"""
_LINES = 8
"""Lines of a panel that are unpacked in an iteration: those of the words of 4-bit codes."""
_CHAINS = 8
"""Sums that a processor has under way: two at a time, each taking four cycles."""
_HEIGHTS_OF_GROUPS = (8, 4, 1)
"""Heights of tiles for groups of rows with an expert each."""


@dataclass(frozen=True, slots=True)
class _BlockProduct:
    """The stages and sizes of a product with block-quantised weights."""

    sums: te.Tensor
    """products summed over each block: (rows, blocks, columns)"""
    codes: te.Tensor | None
    """codes as operands, (panels, steps, NR), where they are unpacked"""
    packed: te.Tensor
    """codes as stored, (panels, words, NR)"""
    blocks: int
    steps: int
    """steps of the sum over a block"""
    row_bytes: int
    """bytes of a row of the data"""
    panel: Callable[[Sequence[Any], Any], Any]
    """the panel of a column, as codes are stored, for a group of rows"""
    panels: int
    """panels that a row is multiplied with"""

    @staticmethod
    def of(anchor: te.Operation) -> _BlockProduct:
        (sums,) = [t for t in anchor.input_tensors if t.op.tag == "block_sums"]
        codes = [t for t in sums.op.input_tensors if t.op.tag == "widened_weights"]
        (block,), (step,) = anchor.reduce_axis, sums.op.reduce_axis
        data, weights = sorted(sums.op.input_tensors, key=lambda t: t.ndim)  # (M, K) and (panels, steps, NR)
        packed = max(codes[0].op.input_tensors, key=lambda t: t.ndim) if codes else weights
        row_bytes = constant_size(data.shape[-1:]) * data.dtype.nbytes
        blocks, steps = [constant_size([extent_of(axis)]) for axis in (block, step)]
        unpacked, of_rows = codes[0] if codes else None, (anchor.attrs["panel"], anchor.attrs["panels"])
        return _BlockProduct(sums, unpacked, packed, blocks, steps, row_bytes, *of_rows)


@register_schedule("dense_blocks", "cpu")
def schedule_dense_blocks(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[m, n] = sum_b scale[n, b] * (scale[m, b] * (sum of A[m, k] * code[n, k] over k in b) - offset[m, n, b])."""
    narrow, rows = _plan(outs[0], anchor, target), num_elements(outs[0].shape[:-1])
    plan = _plan(outs[0], anchor, target, _PANELS_OF_MANY_ROWS) if _pairs_panels(anchor, narrow, target) else narrow
    if isinstance(rows, int):
        return _dense_blocks(outs, anchor, target, plan)
    heights = [height for height in _FEW_ROWS if height <= narrow.height]
    few = max(_FEW_TILES * heights[0], plan.height)
    tiles = min(few // plan.height + 1, TILES_OF_DYNAMIC_ROWS)
    s = _dense_blocks(outs, anchor, target, replace(plan, tiles_of_a_panel=tiles))
    fewer = [ProductPlan(height, narrow.width, narrow.panel, panels_first=True) for height in heights]
    s.specialize_small(versions([_dense_blocks(outs, anchor, target, each) for each in fewer]), unless=rows > few)
    return s


def _pairs_panels(anchor: te.Operation, narrow: ProductPlan, target: Target) -> bool:
    """Whether tiles span two panels: where several pass over each, and panels are single vectors."""
    panels = _BlockProduct.of(anchor).panels
    single = narrow.panel == vector_lanes(target) and not has_few_registers(target)
    return single and narrow.tiles_of_a_panel > 1 and panels % _PANELS_OF_MANY_ROWS == 0


def _spare(product: _BlockProduct, target: Target) -> int:
    """Registers that are not for the sums of a block."""
    spare = spare_registers(target, "fma" if product.sums.dtype == "float32" else "dot4")
    return spare + (target.vector_registers // 2 - 1 if product.blocks > 1 and not has_few_registers(target) else 0)


def _plan(out: te.Tensor, anchor: te.Operation, target: Target, at_once: int = 1) -> ProductPlan:
    """Tiles of `at_once` panels: half of the registers hold the sums of a block, the others those of several blocks.

    With few registers the latter are spilled, which costs less than shorter tiles (Zen 4, AVX2, 4 x 1024 x 65536, int8:
    one tile of 4 rows 3.0 ms, two of 2 rows 5.3).
    """
    product, panel = _BlockProduct.of(anchor), anchor.attrs["block"] * at_once
    *row_dims, columns = StoreOrder.of(out).result.shape
    rows, panels = constant_size(row_dims), -(-constant_size([columns]) // panel)
    steps, spare = product.blocks * product.steps, _spare(product, target)
    height = tile_rows(target, rows, panel, steps, panels, temporaries=spare, apart=product.row_bytes)
    tiles = -(-rows // height)

    def once_a_panel() -> bool | Refused:
        if product.codes is None:
            return Refused("codes are operands as they are stored")
        return True if tiles > 1 else Refused("one tile of rows reads each panel")

    unpacks = first_of("codes", (("unpacked once a panel", once_a_panel), ("in registers", lambda: False)))
    plan = ProductPlan(
        height, panel, panel, panels_first=True, separate_panels=unpacks, tiles_of_a_panel=tiles,
        panels_of_a_tile=at_once,
    )  # fmt: skip
    note("tiles", "blocks of codes", plan)
    return plan


def _dense_blocks(outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan) -> te.Schedule:
    s, out = te.create_schedule([o.op for o in outs]), outs[0]
    product, lanes = _BlockProduct.of(anchor), vector_lanes(target)
    plan = _with_chains(plan, product, lanes)
    unpacked = [] if product.codes is None else [product.codes]
    inline_injective(s, outs, keep=[anchor, *StoreOrder.of(out).kept, product.sums.op, *[t.op for t in unpacked]])
    accumulator = tile_results(s, out, anchor, target, plan, product.blocks * product.steps)
    _sum_blocks(s, accumulator, product, plan, lanes)
    if plan.tiles_of_a_panel > 1:
        stream_unpacked(s, accumulator, product.packed, plan)
    for codes in unpacked:
        if plan.separate_panels:
            line = place_panels(s, out, codes, target)
            s[codes].unroll(s[codes].split(line, factor=_LINES)[1])
        else:
            s[codes].compute_inline()
    return s


@register_schedule("routed_blocks", "cpu")
def schedule_routed_blocks(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """The products of `schedule_dense_blocks` for groups of rows (T, rows, K), each with the weights of an expert.

    Codes are unpacked in registers: the tiles of a group are too few to pay for panels of them (8 rows: 1.3 times).
    """
    product, panel, length = _BlockProduct.of(anchor), anchor.attrs["block"], extent_of(anchor.axis[-2])
    rows = constant_size([length])
    height = tile_rows(
        target, rows, panel, product.blocks * product.steps, temporaries=_spare(product, target),
        apart=product.row_bytes,
    )  # fmt: skip
    heights = [n for n in _HEIGHTS_OF_GROUPS if n <= height]
    plans = [ProductPlan(n, panel, panel, tiles_of_a_panel=1 if n == 1 else -(-rows // n)) for n in heights]
    note("tiles", "blocks of codes", plans[0])
    used = plans[:1] if isinstance(length, int) else plans
    return versions([_routed_blocks(outs, anchor, target, plan, product) for plan in used])


def _routed_blocks(
    outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan, product: _BlockProduct
) -> te.Schedule:
    s = te.create_schedule([o.op for o in outs])
    inline_injective(s, outs, keep=[anchor, product.sums.op])
    plan = _with_chains(plan, product, vector_lanes(target))
    accumulator = tile_results(s, outs[0], anchor, target, plan, product.blocks * product.steps, in_groups=True)
    _sum_blocks(s, accumulator, product, plan, vector_lanes(target))
    if product.codes is not None:
        s[product.codes].compute_inline()
    return s


def _with_chains(plan: ProductPlan, product: _BlockProduct, lanes: int) -> ProductPlan:
    """The plan with tiles of few rows across several panels where columns are one block: each addition to a vector
    waits for the one before, and no sum of another block fills the time."""
    if product.blocks > 1 or plan.panels_of_a_tile > 1 or plan.separate_panels:
        return plan
    chains = plan.height * -(-plan.panel // lanes)
    at_once = next(n for n in (4, 2, 1) if n == 1 or (product.panels % n == 0 and n * chains <= _CHAINS))
    width = plan.panel * at_once
    return replace(plan, width=width, panel=width, panels_of_a_tile=at_once)


def _sum_blocks(
    s: te.Schedule, accumulator: te.Tensor, product: _BlockProduct, plan: ProductPlan, lanes: int
) -> None:
    """The sums over a block, of a tile, in registers."""
    (block,) = s[accumulator].op.reduce_axis
    sums = product.sums
    s[sums].set_scope("local")
    s[sums].compute_at(s[accumulator], block)
    *_, row, of_block, column = s[sums].op.axis
    (step,) = s[sums].op.reduce_axis
    most = choose("steps of a block", _STEPS, (4, 8, 16, 32))
    outer, inner = s[sums].split(step, factor=min(most, product.steps))
    s[sums].reorder(of_block, outer, inner, row, column)
    s[sums].unroll(inner)
    s[sums].unroll(row)
    vectorize_panel(s, sums, column, plan.width, lanes, apart=plan.panels_of_a_tile > 1)
    if plan.tiles_of_a_panel <= 1:
        _stream_codes(s, product, outer, min(most, product.steps), plan)


def _stream_codes(s: te.Schedule, product: _BlockProduct, loop: te.IterVar, steps: int, plan: ProductPlan) -> None:
    """Prefetch the codes that a later iteration of `loop`, of so many steps, reads: a few rows read each panel once."""
    codes, panel = product.packed, plan.panel // plan.panels_of_a_tile
    words = constant_size(codes.shape[1:2]) // product.blocks  # of a column in a block
    ahead = _DISTANCE_BYTES // (panel * codes.dtype.nbytes)

    def read(next_panel: int, *i: Any) -> Sequence[Any]:
        *row, block, column, step = i
        first = product.panel(row[:-1], column + next_panel * panel)
        return first, 0, (block * words + step * words // product.steps) * panel

    for each in range(plan.panels_of_a_tile):
        for word in range(max(steps * words // product.steps, 1)):
            wanted = te.Prefetch((word + ahead) * panel, order=partial(read, each), past_end=True)
            s[product.sums].prefetch(codes, loop, wanted)


@register_schedule("quantize_blocks", "cpu")
def schedule_quantize_blocks(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Largest magnitudes, values, scales and sums of blocks, each in a loop over the blocks of all rows."""
    s, (values, scales, sums) = te.create_schedule([out.op for out in outs]), outs
    lanes, operations = vector_lanes(target), 4.0 * constant_size(values.shape)
    (largest,) = [t for t in scales.op.input_tensors if t.op.tag == "block_reduction"]
    (totals,) = [t for t in sums.op.input_tensors if t.op.tag == "block_reduction"]
    blocks = {t: s[t].fuse(*s[t].op.axis[: scales.ndim]) for t in (largest, values, scales, sums)}
    for tensor, block in blocks.items():
        parallel(s, tensor, block, operations, lanes)
    s[totals].compute_at(s[sums], blocks[sums])
    vectorize_reduction(s, totals, lanes, (sums, blocks[sums]))
    vectorize_reduction(s, largest, lanes, (largest, blocks[largest]))
    of_block = s[values].op.axis[-1]
    vectorize_elements(s, values, of_block, extent_of(of_block), lanes)
    return s
