"""Quantized operators of com.microsoft against numpy and onnxruntime. Ties may round either way: one step apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relayc.frontends.onnx.backend import RelayBackend
from tests.frontends.node_cases import check, node_model, rejected

rng = np.random.default_rng(0)
ONE_STEP: dict[str, Any] = {"rtol": 0.0, "atol": 1.0}
KINDS = [np.uint8, np.int8]


def number(value: float) -> np.ndarray[Any, Any]:
    return np.array(value, np.float32)


def codes(kind, *shape):
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max + 1, shape).astype(kind)


def real(x, scale, zero):
    return (x.astype(np.float32) - np.float32(0 if zero is None else zero)) * scale


def rounded(x, scale, zero, kind):
    limits = np.iinfo(kind)
    return np.clip(np.rint(x / scale) + (0 if zero is None else int(zero)), limits.min, limits.max).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_binary(name, kind):
    a, b = codes(kind, 2, 3, 4), codes(kind, 4)
    scales, zeros = [number(v) for v in (0.02, 0.03, 0.05)], [np.array(v, kind) for v in (3, 5, 7)]
    function = np.add if name == "QLinearAdd" else np.multiply
    result = function(real(a, scales[0], zeros[0]), real(b, scales[1], zeros[1]))
    inputs = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]
    check(name, inputs, rounded(result, scales[2], zeros[2], kind), weights=[1, 2, 4, 5, 6, 7], **ONE_STEP)
    bare = [a, scales[0], None, b, scales[1], None, scales[2]]
    expected = rounded(function(real(a, scales[0], 0), real(b, scales[1], 0)), scales[2], 0, kind)
    check(name, bare, expected, weights=[1, 4, 6], peer=False, **ONE_STEP)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


UNARY = {
    "QLinearSigmoid": ({}, 1 / 256, lambda x: 1 / (1 + np.exp(-x))),
    "QLinearLeakyRelu": ({"alpha": 0.3}, 0.03, lambda x: np.where(x < 0, np.float32(0.3) * x, x)),
    "QLinearGlobalAveragePool": ({"channels_last": 0}, 0.01, lambda x: x.mean((2, 3), keepdims=True)),
    "QLinearSoftmax": ({"axis": -1, "opset": 13}, 1 / 256, lambda x: softmax(x, -1)),
    "QLinearReduceMean": ({"axes": [1, 2], "keepdims": 0}, 0.01, lambda x: x.mean((1, 2))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, kind):
    attrs, scale, function = UNARY[name]
    x, x_scale, x_zero = codes(kind, 2, 3, 4, 5), number(0.02), np.array(9, kind)
    y_scale, y_zero = number(scale), np.array(0 if kind is np.uint8 else -20, kind)
    expected = rounded(function(real(x, x_scale, x_zero)), y_scale, y_zero, kind)
    inputs, peer = [x, x_scale, x_zero, y_scale, y_zero], name != "QLinearReduceMean"  # which onnxruntime only declares
    check(name, inputs, expected, weights=[1, 2, 3, 4], peer=peer, **ONE_STEP, **attrs)


def test_softmax_over_several_axes_before_opset_13():
    x, scales, zero = codes(np.uint8, 2, 3, 4), [number(0.05), number(1 / 256)], np.array(0, np.uint8)
    flat = softmax(real(x, scales[0], 7).reshape(2, 12), 1).reshape(x.shape)
    inputs = [x, scales[0], np.array(7, np.uint8), scales[1], zero]
    check("QLinearSoftmax", inputs, rounded(flat, scales[1], 0, np.uint8), weights=[1, 2, 3, 4], axis=1, opset=12,
          **ONE_STEP)  # fmt: skip


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(channels_last, include):
    x, scales, zeros = codes(np.uint8, 1, 3, 6, 6), [number(0.02), number(0.03)], [np.array(9, np.uint8)] * 2
    values = np.pad(real(x, scales[0], zeros[0]), [(0, 0), (0, 0), (1, 1), (1, 1)])
    counts = np.pad(np.ones(x.shape, np.float32), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=include)
    sums = [np.lib.stride_tricks.sliding_window_view(v, (3, 3), axis=(2, 3)).sum((-1, -2)) for v in (values, counts)]
    result = (sums[0] / sums[1])[:, :, ::2, ::2]
    expected = rounded(result, scales[1], zeros[1], np.uint8)
    if channels_last:
        x, expected = np.ascontiguousarray(np.moveaxis(x, 1, -1)), np.moveaxis(expected, 1, -1)
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": include}
    inputs = [x, scales[0], zeros[0], scales[1], zeros[1]]
    check("QLinearAveragePool", inputs, expected, channels_last=channels_last, **attrs, **ONE_STEP)


def test_channels_last_global_average_pool():
    x, scales, zero = codes(np.uint8, 2, 4, 5, 3), [number(0.02), number(0.01)], np.array(9, np.uint8)
    expected = rounded(real(x, scales[0], zero).mean((1, 2), keepdims=True), scales[1], zero, np.uint8)
    check("QLinearGlobalAveragePool", [x, scales[0], zero, scales[1], zero], expected, channels_last=1, **ONE_STEP)


def test_nhwc_max_pool():
    x = codes(np.int8, 1, 6, 6, 3)
    expected = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))[:, ::2, ::2].max((-1, -2))
    check("NhwcMaxPool", [x], expected, kernel_shape=[2, 2], strides=[2, 2])


def test_concat_and_where():
    x, y = codes(np.uint8, 2, 3), codes(np.uint8, 2, 2)
    x_quant, y_quant, z_quant = [(number(s), np.array(z, np.uint8)) for s, z in ((0.02, 3), (0.05, 9), (0.04, 5))]
    joined = np.concatenate([real(x, *x_quant), real(y, *y_quant)], 1)
    expected = rounded(joined, *z_quant, np.uint8)
    inputs = [*z_quant, x, *x_quant, y, *y_quant]
    check("QLinearConcat", inputs, expected, weights=[0, 1, 3, 4, 6, 7], axis=1, **ONE_STEP)
    condition, y = rng.integers(0, 2, (2, 3)).astype(bool), codes(np.uint8, 2, 3)
    expected = rounded(np.where(condition, real(x, *x_quant), real(y, *y_quant)), *z_quant, np.uint8)
    check("QLinearWhere", [condition, x, *x_quant, y, *y_quant, *z_quant], expected, weights=[2, 3, 5, 6, 7, 8],
          **ONE_STEP)  # fmt: skip


@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm(floats, trans_b):
    a, c = codes(np.uint8, 3, 4), rng.integers(-99, 99, 5).astype(np.int32)
    b = rng.integers(-50, 50, (4, 5)).astype(np.int8)
    a_quant, b_scale = (number(0.02), np.array(9, np.uint8)), rng.uniform(0.01, 0.05, 5).astype(np.float32)
    b_zero, y_quant = np.zeros(5, np.int8), (number(0.1), np.array(100, np.uint8))
    product = (a.astype(np.int64) - 9) @ b.astype(np.int64) + c
    result = (product * (a_quant[0] * b_scale)).astype(np.float32)
    expected = result if floats else rounded(result, *y_quant, np.uint8)
    b = np.ascontiguousarray(b.T) if trans_b else b
    inputs = [a, *a_quant, b, b_scale, b_zero, c, *([] if floats else y_quant)]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if floats else ONE_STEP
    check("QGemm", inputs, expected, weights=range(1, len(inputs)), transB=trans_b, **tolerance)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_conversions(kind):
    x = (rng.normal(size=(3, 4)) * 2).astype(np.float32)
    scale, zero = np.array([0.02, 0.05, 0.01], np.float32), np.array([3, 5, 0], kind)
    limits = np.iinfo(kind)
    expected = np.clip(np.rint(x / scale[:, None]) + zero[:, None], limits.min, limits.max).astype(kind)
    check("QuantizeLinear", [x, scale, zero], expected, weights=[1, 2], axis=0, **ONE_STEP)
    back = ((expected.astype(np.float32) - zero[:, None]) * scale[:, None]).astype(np.float32)
    check("DequantizeLinear", [expected, scale, zero], back, weights=[1, 2], axis=0)
    one = [np.array(0.02, np.float32), np.array(4, kind)]
    check("QuantizeLinear", [x, *one], rounded(x, *one, kind), **ONE_STEP)
    check("DequantizeLinear", [expected, *one], real(expected, *one))


def test_scales_and_zero_points_that_do_not_fit():
    x, scale, zero = codes(np.uint8, 2, 3, 4, 5), number(0.02), np.array(9, np.uint8)
    for name, inputs, attrs, text in [
        ("QLinearSigmoid", [x, np.ones(2, np.float32), zero, scale, zero], {}, "one number"),
        ("QLinearSigmoid", [x, scale, np.array(1, np.int8), scale, zero], {}, "zero point of int8"),
        ("QLinearConcat", [scale, zero, x, scale], {"axis": 0}, "4 inputs"),
        ("QuantizeLinear", [x.astype(np.float32), np.ones(2, np.float32), np.ones(2, np.uint8)], {"axis": 1}, "axis 1"),
    ]:
        rejected(name, inputs, text, **attrs)


# models ---------------------------------------------------------------------------------------------------------------


def test_embeddings_of_quantized_tables():
    words, segments = rng.integers(0, 9, (2, 3)).astype(np.int32), rng.integers(0, 2, (2, 3)).astype(np.int32)
    tables = [codes(np.uint8, n, 8) for n in (9, 5, 2)] + [codes(np.uint8, 8), codes(np.uint8, 8)]
    scales, zeros = [number(0.01 * k) for k in range(1, 6)], [np.uint8(100 + k) for k in range(5)]
    floats = [real(t, s, z) for t, s, z in zip(tables, scales, zeros, strict=True)]
    total = (floats[0][words] + floats[1][:3] + floats[2][segments]).astype(np.float64)
    centred = total - total.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * floats[3] + floats[4]
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    check("QEmbedLayerNormalization", [words, segments, *tables, mask, *scales, *zeros],
          [normed.astype(np.float32), np.array([2, 3], np.int32)], outputs=2,
          weights=[*range(2, 7), *range(8, 18)])  # fmt: skip


def test_lstm_of_quantized_weights():
    """onnxruntime rounds activations to 8 bits, too, and is compared as closely as that allows."""
    x, bias = rng.normal(size=(6, 2, 3)).astype(np.float32), rng.normal(size=(2, 32)).astype(np.float32)
    w, r = codes(np.uint8, 2, 3, 16), codes(np.uint8, 2, 4, 16)
    scale, zero = np.array([0.01, 0.02], np.float32), np.array([128, 120], np.uint8)

    def floats(q):
        return ((q.astype(np.float32) - zero[:, None, None]) * scale[:, None, None]).transpose(0, 2, 1)

    how = {"hidden_size": 4, "direction": "bidirectional", "outputs": 3}
    model, passed = node_model("LSTM", [x, floats(w), floats(r), bias], domain="", **how)
    expected = [np.asarray(y) for y in RelayBackend.prepare(model).run(passed)]
    inputs = [x, w, r, bias, None, None, None, None, scale, zero, scale, zero]
    exact = check("DynamicQuantizeLSTM", inputs, expected, weights=[1, 2, 3, 8, 9, 10, 11], peer=False, **how)
    check("DynamicQuantizeLSTM", inputs, exact, weights=[1, 2, 3, 8, 9, 10, 11], atol=0.03, **how)
