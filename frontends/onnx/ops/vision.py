"""Object detection: regions of interest."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, counted, float_const, require_rank, reshape_to
from relayc.frontends.onnx.ops.grid import Axis, sampled
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import add_sizes, larger, product
from relayc.te.tir import Dim


@converter("RoiAlign", since=10)
def roi_align_10(node: OnnxNode) -> Expr:
    """RoiAlign before opset 16, without the half-pixel shift."""
    return _roi_align(node, half_pixel=False)


@converter("RoiAlign", since=16)
def roi_align(node: OnnxNode) -> Expr:
    modes = ("half_pixel", "output_half_pixel")
    mode = node.attr_choice("coordinate_transformation_mode", modes, "half_pixel")
    return _roi_align(node, half_pixel=mode == "half_pixel")


def _roi_align(node: OnnxNode, half_pixel: bool) -> Expr:
    size = (node.attr_int("output_height", 1), node.attr_int("output_width", 1))
    return op.vision.roi_align(
        node[0],
        node[1],
        node[2],
        pooled_size=size,
        spatial_scale=node.attr_float("spatial_scale", 1.0),
        sample_ratio=node.attr_int("sampling_ratio", 0),
        half_pixel=half_pixel,
        mode=node.attr_choice("mode", ("avg", "max"), "avg"),
    )


@converter("CropAndResize", domain=MICROSOFT)
def crop_and_resize(node: OnnxNode) -> Expr:
    """Crops boxes (y1, x1, y2, x2), normalised, and resizes them.

    Corners are aligned to pixels; outside of the image is `extrapolation_value`. Inputs: images [N, C, H, W], boxes
    [R, 4], the image of each, the size.
    """
    require_rank(node, 0, 4, 4)
    require_rank(node, 1, 2, 2)
    boxes, size = node[1], node.sizes(3, "the size of the crops", 2)
    mode = node.attr_choice("mode", ("bilinear", "nearest"), "bilinear")
    count, channels, spatial = boxes.shape[0], node.type(0).shape[1], node.type(0).shape[2:]
    images = op.take(node[0], node[2], axis=0, mode="clip")
    flat = reshape_to(images, (count, channels, product(spatial)))
    axes = [Axis(extent, "border", True) for extent in spatial]
    places = [_crop_positions(_column(boxes, a), _column(boxes, a + 2), size[a], spatial[a]) for a in (0, 1)]
    shape = (count, *size)
    pixels, inside = [], None
    for a, place in enumerate(places):
        laid = op.broadcast_to(op.expand_dims(place, 2 if a == 0 else 1), shape)
        last = op.cast(op.size_tensor((add_sizes(spatial[a], -1),), ()), laid.dtype)
        here = op.logical_and(op.greater_equal(laid, float_const(0.0, laid)), op.less_equal(laid, last))
        inside = here if inside is None else op.logical_and(inside, here)
        # onnxruntime rounds halves away from zero here
        moved = op.floor(op.add(laid, float_const(0.5, laid))) if mode == "nearest" else laid
        pixels.append(reshape_to(moved, (count, product(size))))
    assert inside is not None
    found = sampled(flat, axes, pixels, "nearest" if mode == "nearest" else "linear")
    found = reshape_to(found, (count, channels, *size))
    other = float_const(node.attr_float("extrapolation_value", 0.0), found)
    return op.where(op.expand_dims(inside, 1), found, other)


def _crop_positions(start: Expr, end: Expr, count: Dim, extent: Dim) -> Expr:
    """Positions in pixels of `count` samples of each box along an axis: [R, count]."""
    last = op.cast(op.size_tensor((add_sizes(extent, -1),), ()), start.dtype)
    several = op.greater(op.size_tensor((count,), ()), const(1, "int64"))
    gaps = op.cast(op.size_tensor((larger(add_sizes(count, -1), 1),), ()), start.dtype)
    step = op.expand_dims(op.divide(op.multiply(op.subtract(end, start), last), gaps), 1)
    along = op.add(op.expand_dims(op.multiply(start, last), 1), op.multiply(op.cast(counted(count), start.dtype), step))
    middle = op.multiply(op.multiply(op.add(start, end), last), float_const(0.5, start))
    return op.where(several, along, op.expand_dims(middle, 1))


@converter("MaxRoiPool", since=1)
def max_roi_pool(node: OnnxNode) -> Expr:
    """Maximum of each bin of regions (image, x1, y1, x2, y2); 0 if empty.

    Corners are rounded and inclusive, and neighbouring bins overlap. Maxima are taken over the columns of each bin
    first, then over its rows.
    """
    x, regions = node[0], node[1]
    size = node.attr_ints("pooled_shape")
    if len(size) != 2 or min(size) < 1 or node.rank(0) != 4:
        raise node.error(f"pooled_shape {list(size)}", expected="two positive numbers, and images [N, C, H, W]")
    *_, height, width = x.shape
    scale = float_const(node.attr_float("spatial_scale", 1.0), regions)
    corners = [_column(op.multiply(regions, scale), c) for c in range(1, 5)]
    left, top, right, bottom = [op.floor(op.add(c, float_const(0.5, c))) for c in corners]
    images = op.take(x, op.cast(_column(regions, 0), "int64"), axis=0)
    lowest = float_const(-np.inf, x)
    in_columns = op.expand_dims(op.expand_dims(_bins(left, right, size[1], width), 1), 1)  # [R, 1, 1, bins, W]
    columns = op.max(op.where(in_columns, op.expand_dims(images, 3), lowest), axis=4)  # [R, C, H, bins]
    in_rows = op.expand_dims(op.expand_dims(_bins(top, bottom, size[0], height), 1), 4)  # [R, 1, bins, H, 1]
    largest = op.max(op.where(in_rows, op.expand_dims(columns, 2), lowest), axis=3)
    return op.where(op.equal(largest, lowest), float_const(0.0, x), largest)


def _column(rows: Expr, number: int) -> Expr:
    return op.squeeze(op.strided_slice(rows, (number,), (number + 1,), axes=(1,)), axis=(1,))


def _bins(first: Expr, last: Expr, count: int, extent: Dim) -> Expr:
    """Mask of the positions in each bin of each region: [R, count, extent]."""
    one = float_const(1.0, first)
    step = op.divide(op.maximum(op.add(op.subtract(last, first), one), one), float_const(float(count), first))
    numbers = Constant(np.arange(count, dtype=str(first.dtype))[None, :])
    step, start = op.expand_dims(step, 1), op.expand_dims(first, 1)
    begin = op.expand_dims(op.add(op.floor(op.multiply(numbers, step)), start), 2)
    end = op.expand_dims(op.add(op.ceil(op.multiply(op.add(numbers, one), step)), start), 2)
    place = op.expand_dims(counted(extent, str(first.dtype)), 0, 2)
    return op.logical_and(op.greater_equal(place, begin), op.less(place, end))
