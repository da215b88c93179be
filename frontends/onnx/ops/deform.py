"""Deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted, reshape_to, transposed
from relayc.frontends.onnx.ops.grid import Axis, Points, sample_points
from relayc.frontends.onnx.ops.window import Window, read_window
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import product, quotient
from relayc.relay.type import dims_match, shapes_match
from relayc.te.tir import Dim


@converter("DeformConv", since=19)
def deform_conv(node: OnnxNode) -> Expr:
    """Interpolated sampling at offset taps, then one matrix product (Dai et al., 2017; Zhu et al., 2019).

    Inputs: X [N, C, spatial..], W [M, C / groups, kernel..], offsets [N, sets * taps * axes, out..], a bias and masks
    [N, sets * taps, out..].
    """
    batch, channels, *spatial = node.type(0).shape
    filters, depth, *sizes = node.type(1).shape
    kernel = node.attrs.get_ints("kernel_shape") or node.shape(1)[2:]
    groups, sets = node.attr_int("group", 1), node.attr_int("offset_group", 1)
    window = read_window(node, kernel, spatial)
    out, taps = node.type(2).shape[2:], math.prod(kernel)
    outputs = quotient((filters,), (groups,)) if groups >= 1 else None
    of_a_set = quotient((depth, groups), (sets,)) if sets >= 1 else None
    fits = dims_match(channels, product((depth, groups))) and shapes_match(kernel, sizes)
    fits = fits and shapes_match(node.type(2).shape[:2], (batch, sets * taps * len(kernel)))
    if outputs is None or of_a_set is None or not fits:
        raise node.error(f"{groups} groups, {sets} sets of offsets")
    count, dtype = product(out), str(node.dtype(0))
    places = (batch, product((count, taps, sets)))

    def by_result(x: Expr) -> Expr:
        """[batch, sets, taps, count] with the taps of each result adjacent."""
        return reshape_to(transposed(x, (0, 3, 2, 1)), places)

    offsets = op.cast(reshape_to(node[2], (batch, sets, taps, len(kernel), count)), dtype)
    pixels: list[Expr] = []
    for axis in range(len(kernel)):
        moved = op.squeeze(op.strided_slice(offsets, (axis,), (axis + 1,), axes=(3,)), axis=(3,))
        pixels.append(by_result(op.add(moved, op.cast(_positions(window, kernel, axis, out), dtype))))
    points = sample_points([Axis(extent, "zeros", True) for extent in spatial], pixels, "linear")
    weights = points.weights
    assert weights is not None, "of linear interpolation"
    mask = node.get(4)
    if mask is not None:
        mask = by_result(op.cast(reshape_to(mask, (batch, sets, taps, count)), dtype))
        weights = op.multiply(weights, op.expand_dims(mask, 1))
    images = transposed(node[0], (0, *range(2, 2 + len(kernel)), 1))
    rows = reshape_to(images, (batch, product((*spatial, sets)), of_a_set))
    columns = op.vision.weighted_pixels(rows, _rows_of_sets(points, product((count, taps)), sets), weights)
    filters_last = transposed(reshape_to(node[1], (groups, outputs, depth, taps)), (0, 1, 3, 2))
    result = _products(reshape_to(columns, (batch, count, taps, groups, depth)), filters_last)
    bias = node.get(3)
    result = result if bias is None else op.add(result, bias)
    return reshape_to(transposed(result, (0, 2, 1)), (batch, filters, *out))


def _products(columns: Expr, filters: Expr) -> Expr:
    """Product of columns [batch, count, taps, groups, depth] and filters [groups, outputs, taps, depth]: [batch, count,
    groups * outputs]."""
    batch, count, taps, groups, depth = columns.shape
    outputs, steps = filters.shape[1], product((taps, depth))
    if groups == 1:
        return op.nn.dense(reshape_to(columns, (batch, count, steps)), reshape_to(filters, (outputs, steps)))
    lines = reshape_to(transposed(columns, (0, 3, 1, 2, 4)), (batch, groups, count, steps))
    result = op.nn.batch_matmul(lines, reshape_to(filters, (1, groups, outputs, steps)))
    return reshape_to(transposed(result, (0, 2, 1, 3)), (batch, count, product((groups, outputs))))


def _rows_of_sets(points: Points, count: Dim, sets: int) -> Expr:
    """Pixel indices [batch, corners, count * sets] as rows of images with a row of channels per set in each pixel."""
    if sets == 1:
        return points.marked()
    shape = points.pixels.shape
    first = reshape_to(op.multiply(points.pixels, const(sets, "int32")), (*shape[:2], count, sets))
    rows = reshape_to(op.add(first, Constant(np.arange(sets, dtype=np.int32))), shape)
    return Points(rows, None, points.valid).marked()


def _positions(window: Window, kernel: Sequence[int], axis: int, out: Sequence[Dim]) -> Expr:
    """[taps, outputs]: the position in pixels of each tap of each window along an axis, without offsets."""
    rank = len(out)
    steps = np.arange(kernel[axis]) * window.dilations[axis] - window.padding[axis]
    first = np.broadcast_to(steps.reshape([-1 if a == axis else 1 for a in range(rank)]), tuple(kernel))
    starts = op.multiply(counted(out[axis]), const(window.strides[axis], "int64"))
    if window.border:
        starts = op.subtract(starts, op.size_tensor((window.border[axis][0],), ()))
    starts = op.broadcast_to(reshape_to(starts, [out[axis] if a == axis else 1 for a in range(rank)]), tuple(out))
    return op.add(Constant(first.reshape(-1, 1).astype(np.int64)), reshape_to(starts, (1, product(out))))
