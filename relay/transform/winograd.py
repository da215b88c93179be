"""Queries about Winograd convolutions: the allowed tiles, the shape of a convolution, and its plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from relayc.backend.target import Target
from relayc.relay.expr import Call
from relayc.relay.op.nn.conv import Conv2D, Conv3D
from relayc.relay.sizes import LIKELY_SIDE, likely
from relayc.te.ir import PassContext
from relayc.te.tir import Dim
from relayc.topi.cpu.convolution.winograd_plan import WinogradPlan, WinogradShape, winograd_pays
from relayc.topi.groups import LIKELY_BATCHES
from relayc.topi.layout import Layout
from relayc.topi.nn.winograd import WINOGRAD_FILTERS, Depth

__all__ = ["likely_images", "winograd_plan", "winograd_shape", "winograd_tiles"]

_WINOGRAD: dict[str, frozenset[int]] = {
    "auto": frozenset((2, 4)), "f2": frozenset((2,)), "f4": frozenset((4,)), "off": frozenset(),
}  # fmt: skip
"""Sides of the output tiles that each value of the option allows."""

PassContext.declare_option(
    "relay.winograd", "auto",
    "convolutions by Winograd's algorithm where it pays: 'auto'; 'f2' or 'f4', tiles of 2 or 4 only; 'off'",
    choices=tuple(_WINOGRAD),
)  # fmt: skip

def winograd_tiles(context: PassContext) -> frozenset[int]:
    """Sides of the output tiles that the option "relay.winograd" allows."""
    return _WINOGRAD[context.option("relay.winograd")]


def likely_images(batch: Dim) -> tuple[int, int]:
    """`images` and `or_images` of a `WinogradShape`: the size of a batch, or two that are likely."""
    return (batch, 0) if isinstance(batch, int) else LIKELY_BATCHES


def winograd_shape(call: Call, op: Conv2D | Conv3D) -> WinogradShape | None:
    """The sizes of `call` for Winograd's algorithm, estimated if dynamic; None if it does not apply.

    In three dimensions, rows and columns are transformed; sizes must be static.
    """
    layout, kernel = Layout(op.data_layout), Layout(op.kernel_layout)
    data, results = layout.axis_sizes(call.args[0].shape), layout.axis_sizes(call.shape)
    taps = kernel.axis_sizes(call.args[1].shape)
    if taps["H"] != taps["W"] or max(op.strides[-2:]) > 1 or len(set(op.dilation[-2:])) > 1:
        return None
    known = [d for d in (data["C"], results["C"], taps["H"]) if isinstance(d, int) and d > 0]
    lines, columns = (likely(results[axis], LIKELY_SIDE) for axis in "HW")
    if len(known) < 3 or min(lines, columns) < 1:
        return None
    inputs, outputs, side = known
    sides_known = isinstance(results["H"], int) and isinstance(results["W"], int)
    apart = op.dilation[-1] * max(WINOGRAD_FILTERS.get(side, (1,)))
    if op.dilation[-1] > 1 and not sides_known and min(lines, columns) < 2 * apart:
        return None  # each of the dilation's images has a tile at least: small ones would be padding for the most part
    images, or_images = likely_images(results["N"])
    shape = WinogradShape(
        images, lines, columns, inputs // op.groups, outputs, side, op.groups, op.dilation[-1], or_images=or_images
    )
    if isinstance(op, Conv2D):
        return shape
    depth, planes = taps["D"], results["D"]
    if not (call.tensor_type.is_static and isinstance(depth, int) and isinstance(planes, int)):
        return None
    read = Depth(depth, op.strides[0], op.dilation[0]).planes(planes)
    return replace(shape, images=images * planes, depth=depth, planes=images * read)


def winograd_plan(target: Target, shape: WinogradShape, allowed: Collection[int]) -> WinogradPlan | None:
    """The plan for a convolution by Winograd's algorithm in `allowed` tiles; None if the direct one is as fast."""
    tiles = [m for m in WINOGRAD_FILTERS.get(shape.kernel, ()) if m in allowed]
    return winograd_pays(target, shape, tiles) if tiles else None
