"""Convolution whose taps are moved by offsets that the network computes."""

from __future__ import annotations

import math

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import reshape_to
from frontends.onnx.ops.grid import Axis, sampled
from frontends.onnx.ops.window import Window, read_window
from frontends.onnx.registry import converter
from frontends.onnx.tensors import check_computed
from relay import op
from relay.expr import Constant, Expr


@converter("DeformConv", since=19)
def deform_conv(node: OnnxNode) -> Expr:
    """Taps sampled between pixels, one product of matrices over them. (Dai et al., 2017; Zhu et al., 2019)

    Inputs: X [N, C, spatial..], W [M, C / groups, kernel..], offsets [N, sets * taps * axes, out..], a bias and masks
    [N, sets * taps, out..].
    """
    batch, channels, *spatial = node.shape(0)
    filters, depth, *kernel = node.shape(1)
    groups, sets = node.attr_int("group", 1), node.attr_int("offset_group", 1)
    window = read_window(node, node.attr_ints("kernel_shape", tuple(kernel)), spatial)
    out, taps = node.shape(2)[2:], math.prod(kernel)
    fits = groups >= 1 and sets >= 1 and channels == depth * groups and filters % groups == 0 and channels % sets == 0
    if not fits or tuple(kernel) != window.kernel or node.shape(2)[:2] != (batch, sets * taps * len(kernel)):
        raise node.error(f"{groups} groups, {sets} sets of offsets")
    count = math.prod(out)
    dtype = str(node.dtype(0))
    offsets = op.cast(reshape_to(node[2], (batch * sets, taps, len(kernel), count)), dtype)
    pixels: list[Expr] = []
    for axis in range(len(kernel)):
        moved = op.squeeze(op.strided_slice(offsets, (axis,), (axis + 1,), axes=(2,)), axis=(2,))
        fixed = Constant(_positions(node, window, axis, out).astype(dtype))
        pixels.append(reshape_to(op.add(moved, fixed), (batch * sets, taps * count)))
    flat = reshape_to(node[0], (batch * sets, channels // sets, math.prod(spatial)))
    columns = sampled(flat, [Axis(extent, "zeros", True) for extent in spatial], pixels, "linear")
    mask = node.get(4)
    if mask is not None:
        columns = op.multiply(columns, reshape_to(op.cast(mask, dtype), (batch * sets, 1, taps * count)))
    columns = reshape_to(columns, (batch, groups, depth * taps, count))
    weights = reshape_to(node[1], (1, groups, filters // groups, depth * taps))
    result = reshape_to(op.nn.matmul(weights, columns), (batch, filters, *out))
    bias = node.get(3)
    return result if bias is None else op.add(result, reshape_to(bias, (filters, *[1] * len(out))))


def _positions(node: OnnxNode, window: Window, axis: int, out: tuple[int, ...]) -> np.ndarray:
    """[taps, outputs]: where each tap of each window lies along an axis, in pixels, without its offset."""
    check_computed((*window.kernel, *out), node.where)
    starts = np.arange(out[axis]) * window.strides[axis] - window.padding[axis]
    steps = np.arange(window.kernel[axis]) * window.dilations[axis]
    rank = len(out)
    shape = [1] * (2 * rank)
    shape[axis], shape[rank + axis] = len(steps), len(starts)
    grid = (steps[:, None] + starts[None, :]).reshape(shape)
    return np.broadcast_to(grid, (*window.kernel, *out)).reshape(math.prod(window.kernel), math.prod(out))
