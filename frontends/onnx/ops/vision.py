"""Object detection: regions of interest."""

from __future__ import annotations

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import float_const
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr


@converter("RoiAlign", since=10)
def roi_align_10(node: OnnxNode) -> Expr:
    """Before opset 16 there is no shift by half a pixel."""
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


@converter("MaxRoiPool", since=1)
def max_roi_pool(node: OnnxNode) -> Expr:
    """The largest value of each bin of each region (image, x1, y1, x2, y2), corners included and rounded; 0 if empty.

    Bins of neighbours overlap, so that their number differs from row to row: the largest values of the columns of each
    bin are taken first, then those of its rows.
    """
    x, regions = node[0], node[1]
    *_, height, width = node.shape(0)
    size = node.attr_ints("pooled_shape")
    if len(size) != 2 or min(size) < 1 or node.rank(0) != 4:
        raise node.error(f"pooled_shape {list(size)}", expected="two positive numbers, and images [N, C, H, W]")
    scale = float_const(node.attr_float("spatial_scale", 1.0), regions)
    corners = [_column(op.multiply(regions, scale), c) for c in range(1, 5)]
    left, top, right, bottom = [op.floor(op.add(c, float_const(0.5, c))) for c in corners]
    images = op.take(x, op.cast(_column(regions, 0), "int64"), axis=0, mode="fast")
    lowest = float_const(-np.inf, x)
    in_columns = op.expand_dims(op.expand_dims(_bins(left, right, size[1], width), 1), 1)  # [R, 1, 1, bins, W]
    columns = op.max(op.where(in_columns, op.expand_dims(images, 3), lowest), axis=4)  # [R, C, H, bins]
    in_rows = op.expand_dims(op.expand_dims(_bins(top, bottom, size[0], height), 1), 4)  # [R, 1, bins, H, 1]
    largest = op.max(op.where(in_rows, op.expand_dims(columns, 2), lowest), axis=3)
    return op.where(op.equal(largest, lowest), float_const(0.0, x), largest)


def _column(rows: Expr, number: int) -> Expr:
    return op.squeeze(op.strided_slice(rows, (number,), (number + 1,), axes=(1,)), axis=(1,))


def _bins(first: Expr, last: Expr, count: int, extent: int) -> Expr:
    """Which of `extent` places are in which of `count` bins of each region: [R, count, extent]."""
    one = float_const(1.0, first)
    step = op.divide(op.maximum(op.add(op.subtract(last, first), one), one), float_const(float(count), first))
    numbers = Constant(np.arange(count, dtype=str(first.dtype))[None, :])
    step, start = op.expand_dims(step, 1), op.expand_dims(first, 1)
    begin = op.expand_dims(op.add(op.floor(op.multiply(numbers, step)), start), 2)
    end = op.expand_dims(op.add(op.ceil(op.multiply(op.add(numbers, one), step)), start), 2)
    place = Constant(np.arange(extent, dtype=str(first.dtype))[None, None, :])
    return op.logical_and(op.greater_equal(place, begin), op.less(place, end))
