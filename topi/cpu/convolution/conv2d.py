"""Convolutions on CPUs: direct, on NHWC data, a register tile of output pixels x channels, no im2col.

Weights are packed [OC/NR][KH][KW][IC][NR]; with groups a panel is one group, or a part of it, and tiles stay within it.
Padding is a copy of the input with a border, made once per kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import first_of
from relayc.topi.cpu.convolution.windows import (
    feeding_pads,
    feeding_windows,
    schedule_pad,
    schedule_windows,
    vectorize_windows,
)
from relayc.topi.cpu.products.amx import plan_tiles
from relayc.topi.cpu.products.matmul import schedule_amx, tile_product, versions
from relayc.topi.cpu.products.narrow import paired_data, schedule_pairs, widened_weights
from relayc.topi.cpu.products.plan import ProductPlan, fewer_rows, plan_product
from relayc.topi.cpu.products.store_order import StoreOrder
from relayc.topi.cpu.tiling import LINE_ELEMENTS, SET_ELEMENTS, at_precision_of
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.registry import register_schedule
from relayc.topi.utils import ceil_div

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_conv_packed"]


_FEW_PIXELS = 4
"""Most pixels of the tiles, two thirds of those planned, for a dynamic number that may be less than a tile's, where
weights are in no cache of the core's own: a pixel at a time reads them as often."""
_TILES_TOGETHER = 2
"""Tiles that take about as long as reading all weights from memory: blocks of fewer pixels would wait for those."""
_BLOCK_SHARE = 1 / 2
"""Part of the L2 cache for the windows of a block of pixels."""


@register_schedule(["conv1d_nwc_packed", "conv2d_nhwc_packed", "conv3d_ndhwc_packed"], "cpu")
def schedule_conv_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[p, o] = sum over ky, kx, i of data[n, y*s + ky, x*s + kx, i] * W[o // NR, ky, kx, i, o % NR], p = (n, y, x).

    A tile's pixels may lie on two lines: each has an address of its own, computed once for the whole reduction. Where
    the number of pixels is dynamic, fewer of them than a tile has are computed a few at a time, or one by one.
    """
    target = at_precision_of(target, anchor.output(0).dtype)
    tiles = plan_tiles(outs[0], anchor, target)

    def one_by_one() -> te.Schedule:
        plan = plan_product(StoreOrder.of(outs[0]).result, anchor, target)
        return _tiled(outs, anchor, target, _in_blocks([plan, *fewer_rows(plan)][-1], anchor, target, 1))

    return first_of("convolution", (
        ("AMX tiles", lambda: schedule_amx(outs, anchor, target, tiles, one_by_one) if tiles else tiles),
        ("register tiles", lambda: _in_register_tiles(outs, anchor, target)),
    ))  # fmt: skip


def _in_register_tiles(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    plan = plan_product(StoreOrder.of(outs[0]).result, anchor, target)
    if all(isinstance(d, int) for d in outs[0].shape[:-1]):
        return _tiled(outs, anchor, target, plan)
    fewer = fewer_rows(plan, (_FEW_PIXELS, 1))
    several = [few for few in fewer if 1 < few.height <= _FEW_PIXELS and plan.streams_few_rows]
    plans = (plan, *several[:1], *fewer[-1:])
    together = _TILES_TOGETHER * plan.height if plan.streams_few_rows else 1
    return versions([_tiled(outs, anchor, target, _in_blocks(each, anchor, target, together)) for each in plans])


def _in_blocks(plan: ProductPlan, anchor: te.Operation, target: Target, together: int) -> ProductPlan:
    """The plan with blocks of pixels, `together` at least, whose windows, if they are copied, the L2 cache holds for
    all panels.

    Why they are copied, `topi.nn.conv.copies_windows` says.
    """
    windows = [op.output(0) for op in feeding_windows(anchor)]
    if not windows:
        return plan
    nbytes = constant_size(windows[0].shape[-1:]) * windows[0].dtype.nbytes * plan.height
    tiles = max(int(_BLOCK_SHARE * target.cache_bytes.l2) // nbytes, 1)
    least = min(ceil_div(together, plan.height), tiles)
    return replace(plan, tiles_of_a_block=tiles, shared_blocks=target.num_cores, least_of_a_block=least)


def _tiled(outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan) -> te.Schedule:
    s = te.create_schedule([out.op for out in outs])
    windows, pairs, pads = feeding_windows(anchor), paired_data(anchor), feeding_pads(outs, anchor)
    copied = [*pads, *windows, *widened_weights(anchor), *pairs]
    inline_injective(s, outs, keep=[anchor, *StoreOrder.of(outs[0]).kept, *copied])
    for op in pairs:
        schedule_pairs(s, op, target)
    for op in windows if not plan.shared_blocks else ():
        schedule_windows(s, op, target)
    for pad in pads:
        schedule_pad(s, pad, target)
        if anchor.attrs["groups"] > 1:  # they read a part of many pixels, whose lines should not alias
            s[pad].storage_align(s[pad].op.axis[-2], SET_ELEMENTS, LINE_ELEMENTS)
    tile_product(s, outs[0], anchor, target, plan)
    for op in windows if plan.shared_blocks else ():
        vectorize_windows(s, op, target)
        s[op].compute_at(s[outs[0]], s[outs[0]].leaf_iter_vars[0])
    return s
