"""Quantized models: QuantizeLinear and DequantizeLinear around every operator, and operators of integers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from tests.frontends.exporters.graphs import Graph, check, torchscript

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


class Quantizer:
    """Writes quantize/dequantize pairs as onnxruntime's and torch's tools do, with weights kept in integers."""

    def __init__(self, g: Graph, activations: Any, per_channel: bool, domain: str = "") -> None:
        self.g, self.kind, self.per_channel, self.domain = g, np.dtype(activations), per_channel, domain

    def pair(self, x: str, scale: float, zero: int) -> str:
        """x rounded to the grid of a scale and a zero point."""
        g = self.g
        params = [g.weight(np.float32(scale)), g.weight(np.array(zero, self.kind))]
        return g("DequantizeLinear", g("QuantizeLinear", x, *params, domain=self.domain), *params, domain=self.domain)

    def weight(self, value: np.ndarray[Any, Any], axis: int = 0) -> tuple[str, np.ndarray[Any, Any]]:
        """int8 weights behind a DequantizeLinear, symmetric, per tensor or along an axis; and their scales."""
        axes = tuple(a for a in range(value.ndim) if a != axis)
        scale = (np.abs(value).max(axes if self.per_channel else None) / 127).astype(np.float32)
        spread = scale.reshape([-1 if a == axis else 1 for a in range(value.ndim)]) if self.per_channel else scale
        codes = np.clip(np.rint(value / spread), -127, 127).astype(np.int8)
        g, attrs = self.g, {"axis": axis} if self.per_channel else {}
        params = [g.weight(codes), g.weight(scale), g.weight(np.zeros(scale.shape, np.int8))]
        return g("DequantizeLinear", *params, domain=self.domain, **attrs), scale

    def bias(self, value: np.ndarray[Any, Any], x_scale: float, w_scale: np.ndarray[Any, Any]) -> str:
        """int32 in units of the product."""
        scale = (np.float32(x_scale) * w_scale).astype(np.float32)
        codes = np.rint(value / scale).astype(np.int32)
        g, attrs = self.g, {"axis": 0} if self.per_channel else {}
        return g("DequantizeLinear", g.weight(codes), g.weight(scale), domain=self.domain, **attrs)


def network(opset: int, kind: Any, per_channel: bool, domain: str = "") -> Any:
    """Convolution, ReLU, pool, a residual sum, mean, fully connected: a pair around each."""
    g = Graph(torchscript)
    q = Quantizer(g, kind, per_channel, domain)
    zero = 0 if np.dtype(kind).kind == "i" else (1 << (np.iinfo(kind).bits - 1))
    steps = 1 << (np.iinfo(kind).bits - 8)  # finer grids of wider integers
    x = q.pair(g.input("x", ["batch", 3, 10, 10]), 0.03 / steps, zero)
    w, w_scale = q.weight(normal(8, 3, 3, 3) / 3)
    y = g("Relu", g("Conv", x, w, q.bias(normal(8), 0.03 / steps, w_scale), pads=[1] * 4, kernel_shape=[3, 3]))
    y = q.pair(y, 0.03 / steps, zero)
    y = q.pair(g("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), 0.03 / steps, zero)
    w, w_scale = q.weight(normal(8, 1, 3, 3))
    z = q.pair(g("Conv", y, w, group=8, pads=[1] * 4, kernel_shape=[3, 3]), 0.08 / steps, zero)
    y = q.pair(g("Add", y, z), 0.08 / steps, zero)
    y = q.pair(g("GlobalAveragePool", y), 0.02 / steps, zero)
    y = q.pair(g("Flatten", y, axis=1), 0.02 / steps, zero)
    w, w_scale = q.weight(normal(5, 8))
    y = g("Gemm", y, w, q.bias(normal(5), 0.02 / steps, w_scale), transB=1, alpha=1.0, beta=1.0)
    return g.model([q.pair(y, 0.05 / steps, zero)], opset, {domain: 1} if domain else None, ir_version=10)


@pytest.mark.parametrize(
    ("opset", "kind", "per_channel", "domain"),
    [
        (11, np.uint8, False, ""),
        (13, np.uint8, True, ""),
        (17, np.int8, True, ""),
        (21, np.uint16, True, ""),
        (17, np.uint16, True, "com.microsoft"),
    ],
)
def test_pairs_around_every_operator(opset, kind, per_channel, domain):
    """Ties may round either way: results may differ by one step."""
    step = 0.05 / (1 << (np.iinfo(kind).bits - 8))
    check(network(opset, kind, per_channel, domain), {"x": normal(2, 3, 10, 10)}, {"x": normal(1, 3, 10, 10)},
          rtol=0.0, atol=1.01 * step if kind != np.uint16 else 5 * step)  # fmt: skip


def test_operators_of_integers():
    """The QOperator format: only quantised values between the first and the last node."""
    g = Graph(torchscript)

    def params(scale: Any, zero: Any, kind: Any) -> list[str]:
        return [g.weight(np.asarray(scale, np.float32)), g.weight(np.asarray(zero, kind))]

    x = g.input("x", ["batch", 3, 8, 8])
    x_params, y_params, z_params = (params(s, z, np.uint8) for s, z in ((0.03, 128), (0.05, 90), (0.06, 100)))
    codes = g("QuantizeLinear", x, *x_params)
    w_params = params(rng.uniform(0.01, 0.02, 6), np.zeros(6), np.int8)
    weight = g.weight(rng.integers(-60, 60, (6, 3, 3, 3)).astype(np.int8))
    bias = g.weight(rng.integers(-500, 500, 6).astype(np.int32))
    y = g("QLinearConv", codes, *x_params, weight, *w_params, *y_params, bias, pads=[1] * 4, kernel_shape=[3, 3])
    y = g("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    soft = g("QLinearSigmoid", y, *y_params, *params(1 / 256, 0, np.uint8), domain="com.microsoft")
    y = g("QLinearMul", y, *y_params, soft, *params(1 / 256, 0, np.uint8), *z_params, domain="com.microsoft")
    y = g("QLinearAdd", y, *z_params, y, *z_params, *y_params, domain="com.microsoft")
    y = g("QLinearGlobalAveragePool", y, *y_params, *y_params, domain="com.microsoft", channels_last=0)
    flat = g("Reshape", y, g.weight(np.array([0, -1])))
    b_params = params(0.02, 0, np.int8)
    product = g("QLinearMatMul", flat, *y_params, g.weight(rng.integers(-60, 60, (6, 4)).astype(np.int8)), *b_params,
                *z_params)  # fmt: skip
    model = g.model([g("DequantizeLinear", product, *z_params)], 17, {"com.microsoft": 1})
    check(model, {"x": normal(2, 3, 8, 8)}, {"x": normal(1, 3, 8, 8)}, rtol=0.0, atol=0.0601)


@pytest.mark.parametrize("signed", [False, True])
def test_dynamic_quantization(signed):
    """Activations by their own range, a product of integers, Cast, and two Muls with the scales."""
    g = Graph(torchscript)
    x = g.input("x", ["batch", "length", 8])
    g("DynamicQuantizeLinear", x, outputs=["codes", "scale", "zero"])
    kind = np.int8 if signed else np.uint8
    weight = g.weight(rng.integers(-60 if signed else 0, 60, (8, 6)).astype(kind), "weight_quantized")
    zero = g.weight(np.array(0 if signed else 30, kind), "weight_zero_point")
    product = g("Cast", g("MatMulInteger", "codes", weight, "zero", zero), to=1)
    scaled = g("Mul", product, g("Mul", "scale", g.weight(np.float32(0.02), "weight_scale")))
    y = g("Relu", g("Add", scaled, g.weight(normal(6), "bias")))
    model = g.model([y], 17)
    check(model, *({"x": normal(b, t, 8)} for b, t in ((2, 5), (1, 1))), rtol=1e-4, atol=1e-4)


def test_weights_of_four_bits_in_blocks():
    """DequantizeLinear of opset 21 with a block size, and MatMulNBits of the same weights."""
    depth, columns, block = 32, 6, 16
    codes = rng.integers(0, 16, (depth, columns))
    scales = rng.uniform(0.05, 0.2, (depth // block, columns)).astype(np.float32)
    zeros = rng.integers(5, 11, scales.shape)
    x = normal(3, depth)
    real = (codes - zeros.repeat(block, 0)) * scales.repeat(block, 0)

    g = Graph(torchscript)
    data = g.input("x", ["batch", depth])
    narrow = [numpy_helper.from_array(v.astype(ml_dtypes.uint4), name) for v, name in ((codes, "w"), (zeros, "z"))]
    g.weights.extend(narrow)
    weight = g("DequantizeLinear", "w", g.weight(scales), "z", axis=0, block_size=block)
    y = g("MatMul", data, weight)
    (first,) = check(g.model([y], 21, ir_version=10), {"x": x}, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(first[0], x @ real, rtol=1e-3, atol=1e-3)

    g = Graph(torchscript)
    data = g.input("x", ["batch", depth])

    def packed(values: np.ndarray[Any, Any]) -> str:
        pairs = values.T.reshape(columns, -1, 2).astype(np.uint8)
        return g.weight(pairs[..., 0] | pairs[..., 1] << 4)

    blob = packed(codes)
    g.weights[-1].dims[:] = [columns, depth // block, block // 2]
    y = g("MatMulNBits", data, blob, g.weight(np.ascontiguousarray(scales.T)), packed(zeros), domain="com.microsoft",
          K=depth, N=columns, bits=4, block_size=block, accuracy_level=1)  # fmt: skip
    (second,) = check(g.model([y], 17, {"com.microsoft": 1}), {"x": x}, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(second[0], x @ real, rtol=1e-3, atol=1e-3)
