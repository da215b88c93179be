"""Convolutions on CPUs: direct, on NHWC data, a register tile of output pixels x channels, no im2col.

Weights are packed [OC/NR][KH][KW][IC][NR]; with groups a panel is one group, and tiles stay within it. Padding is a
copy of the input with a border, made once per kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel, parallel_outer
from topi.cpu.products.matmul import tile_product
from topi.cpu.products.narrow import paired_data, schedule_pairs, widened_weights
from topi.cpu.products.plan import ProductPlan, fewer_rows, plan_product
from topi.cpu.products.store_order import StoreOrder
from topi.cpu.tiling import LINE_ELEMENTS, SET_ELEMENTS, vector_lanes
from topi.groups import constant_size, inline_injective
from topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["feeding_pads", "schedule_conv_packed", "schedule_pad"]


def feeding_pads(outs: list[te.Tensor], anchor: te.Operation) -> list[te.Operation]:
    """The pad stages that feed the anchor directly."""
    feeding = {id(t.op) for t in anchor.input_tensors}
    return [op for op in operations_behind(outs) if op.tag == "pad" and id(op) in feeding]


def schedule_pad(s: te.Schedule, pad: te.Operation, target: Target) -> None:
    """The bordered copy: lines in parallel, channels vectorised; with few channels whole lines are copied."""
    result, lanes = pad.output(0), vector_lanes(target)
    *lines, w, c = s[result].op.axis
    work = constant_size(result.shape) * 4.0
    if isinstance(c.extent, int) and c.extent >= lanes:
        _, c_inner = s[result].split(c, factor=lanes)
        s[result].vectorize(c_inner)
        parallel_outer(s, result, [*lines, w], work, target)
    else:
        line = s[result].fuse(*lines) if len(lines) > 1 else w
        parallel(s, result, line, work, lanes)
        for axis in dict.fromkeys((line, w)):
            s[result].pragma(axis, "loop_partition_hint")


@register_schedule(["conv1d_nwc_packed", "conv2d_nhwc_packed", "conv3d_ndhwc_packed"], "cpu")
def schedule_conv_packed(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[p, o] = sum over ky, kx, i of data[n, y*s + ky, x*s + kx, i] * W[o // NR, ky, kx, i, o % NR], p = (n, y, x).

    A tile's pixels may lie on two lines: each has an address of its own, worked out once for the whole reduction. Where
    pixels are counted at run time, less of them than a tile has are computed one by one.
    """
    plan = plan_product(StoreOrder.of(outs[0]).result, anchor, target)
    s = _tiled(outs, anchor, target, plan)
    if not all(isinstance(d, int) for d in outs[0].shape[:-1]):
        for single in fewer_rows(plan)[-1:]:
            s.when_small(_tiled(outs, anchor, target, single))
    return s


def _tiled(outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: ProductPlan) -> te.Schedule:
    s = te.create_schedule([out.op for out in outs])
    pads = feeding_pads(outs, anchor)
    pairs = paired_data(anchor)
    inline_injective(s, outs, keep=[anchor, *StoreOrder.of(outs[0]).kept, *pads, *widened_weights(anchor), *pairs])
    for op in pairs:
        schedule_pairs(s, op, target)
    for pad in pads:
        schedule_pad(s, pad, target)
        if anchor.attrs["groups"] > 1:  # which read a part of many pixels: their lines should not meet in the caches
            s[pad].storage_align(s[pad].op.axis[-2], SET_ELEMENTS, LINE_ELEMENTS)
    tile_product(s, outs[0], anchor, target, plan)
    return s
