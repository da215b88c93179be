"""Signal processing: window functions and mel filters."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed, numpy_dtype
from relayc.relay.expr import Constant, Expr

_COSINE_SUMS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""Coefficients a0, a1, a2 of the window a0 - a1 cos(t) + a2 cos(2t)."""


@converter(*_COSINE_SUMS, since=17)
def window(node: OnnxNode) -> Expr:
    """Cosine-sum window, periodic or symmetric."""
    size = node.constant_ints(0, "the size")[0]
    dtype = numpy_dtype(node.attr_int("output_datatype", 1), node.where)
    if size < 0:
        raise node.error(f"a window of {size} elements", expected="0 or more")
    check_computed((size,), node.where)
    period = size if node.attr_bool("periodic", True) else size - 1
    t = 2 * np.pi * np.arange(size) / max(period, 1)
    a0, a1, a2 = _COSINE_SUMS[node.op_type]
    return Constant((a0 - a1 * np.cos(t) + a2 * np.cos(2 * t)).astype(dtype))


@converter("MelWeightMatrix", since=17)
def mel_weight_matrix(node: OnnxNode) -> Expr:
    """Mel filter bank [bins, bands]."""
    count, length, rate = (node.constant_ints(i, "the sizes")[0] for i in range(3))
    low, high = (float(node.constant(i, "the edges").reshape(-1)[0]) for i in (3, 4))
    dtype = numpy_dtype(node.attr_int("output_datatype", 1), node.where)
    bins = length // 2 + 1
    if min(count, length, rate) < 1 or not 0 <= low < high:
        raise node.error(f"{count} bands from {low} to {high} Hz of {length} samples at {rate} Hz")
    check_computed((bins, count), node.where)
    mel = 2595 * np.log1p(np.array([low, high]) / 700) / np.log(10)
    edges = np.arange(count + 2) * (mel[1] - mel[0]) / (count + 2) + mel[0]
    corners = ((length + 1) * 700 * np.expm1(edges / 2595 * np.log(10)) // rate).astype(int)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    at = np.arange(bins)[:, None]
    rising = (at >= left) & (at <= middle)
    falling = (at >= middle) & (at < right)
    up = np.where(middle > left, (at - left) / np.maximum(middle - left, 1), 1.0)
    down = (right - at) / np.maximum(right - middle, 1)
    return Constant(np.where(falling, down, np.where(rising, up, 0.0)).astype(dtype))
