"""Convolution whose taps are moved by offsets that the network computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import counted, reshape_to
from frontends.onnx.ops.grid import Axis, sampled
from frontends.onnx.ops.window import Window, read_window
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr, const
from relay.sizes import product, quotient
from relay.type import dims_match, shapes_match
from te.tir import Dim


@converter("DeformConv", since=19)
def deform_conv(node: OnnxNode) -> Expr:
    """Taps sampled between pixels, one product of matrices over them. (Dai et al., 2017; Zhu et al., 2019)

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
    count, images = product(out), product((batch, sets))
    dtype = str(node.dtype(0))
    offsets = op.cast(reshape_to(node[2], (images, taps, len(kernel), count)), dtype)
    pixels: list[Expr] = []
    for axis in range(len(kernel)):
        moved = op.squeeze(op.strided_slice(offsets, (axis,), (axis + 1,), axes=(2,)), axis=(2,))
        fixed = op.cast(_positions(window, kernel, axis, out), dtype)
        pixels.append(reshape_to(op.add(moved, fixed), (images, product((taps, count)))))
    flat = reshape_to(node[0], (images, of_a_set, product(spatial)))
    columns = sampled(flat, [Axis(extent, "zeros", True) for extent in spatial], pixels, "linear")
    mask = node.get(4)
    if mask is not None:
        columns = op.multiply(columns, reshape_to(op.cast(mask, dtype), (images, 1, product((taps, count)))))
    columns = reshape_to(columns, (batch, groups, product((depth, taps)), count))
    weights = reshape_to(node[1], (1, groups, outputs, product((depth, taps))))
    result = reshape_to(op.nn.matmul(weights, columns), (batch, filters, *out))
    bias = node.get(3)
    return result if bias is None else op.add(result, reshape_to(bias, (filters, *[1] * len(out))))


def _positions(window: Window, kernel: Sequence[int], axis: int, out: Sequence[Dim]) -> Expr:
    """[taps, outputs]: where each tap of each window lies along an axis, in pixels, without its offset."""
    rank = len(out)
    steps = np.arange(kernel[axis]) * window.dilations[axis] - window.padding[axis]
    first = np.broadcast_to(steps.reshape([-1 if a == axis else 1 for a in range(rank)]), tuple(kernel))
    starts = op.multiply(counted(out[axis]), const(window.strides[axis], "int64"))
    if window.border:
        starts = op.subtract(starts, op.sizes((window.border[axis][0],), ()))
    starts = op.broadcast_to(reshape_to(starts, [out[axis] if a == axis else 1 for a in range(rank)]), tuple(out))
    return op.add(Constant(first.reshape(-1, 1).astype(np.int64)), reshape_to(starts, (1, product(out))))
