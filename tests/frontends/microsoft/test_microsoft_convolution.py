"""Convolutions, crops and other image operators of com.microsoft against numpy, ONNX's operators and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.frontends.onnx.backend import RelayBackend
from tests.frontends.node_cases import check, node_model, rejected

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def codes(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def by_onnx(op, inputs, **attrs):
    """The result of ONNX's operator."""
    model, passed = node_model(op, inputs, domain="", **attrs)
    return np.asarray(RelayBackend.prepare(model).run(passed)[0])


def last(x):
    return x.transpose(0, 2, 3, 1)


def test_convolutions_with_the_channels_last():
    x, w, b, z = normal(1, 4, 6, 5), normal(6, 4, 3, 3), normal(6), normal(1, 6, 6, 5)
    plain = by_onnx("Conv", [x, w, b], pads=[1, 1, 1, 1])
    for weights in (w, last(w)):
        check("NhwcConv", [last(x), weights, b], last(plain), weights=[1, 2], pads=[1, 1, 1, 1], peer=False)
    check("NhwcFusedConv", [last(x), last(w), b, last(z)], last(np.maximum(plain + z, 0)), weights=[1, 2],
          pads=[1, 1, 1, 1], activation="Relu", peer=False)  # fmt: skip
    rejected("NhwcConv", [normal(1, 6, 5, 3), normal(2, 3, 3, 3)], "either order")
    rejected("NhwcConv", [normal(1, 6, 5, 4), normal(2, 3, 3, 3)], "neither order")


@pytest.mark.parametrize("channels_last", [0, 1])
def test_quantized_convolution(channels_last):
    scales = [np.float32(0.1), np.uint8(3)], [np.float32(0.05), np.uint8(120)], [np.float32(2), np.uint8(7)]
    x, w, bias = codes(1, 4, 6, 5), codes(3, 4, 3, 3), rng.integers(-9, 9, 3).astype(np.int32)
    expected = by_onnx("QLinearConv", [x, *scales[0], w, *scales[1], *scales[2], bias])
    passed, result = (last(x), last(expected)) if channels_last else (x, expected)
    check("QLinearConv", [passed, *scales[0], w, *scales[1], *scales[2], bias], result, weights=range(1, 9),
          channels_last=channels_last)  # fmt: skip


def test_transposed_convolution_with_computed_pads():
    x, w, b, pads = normal(1, 3, 4, 4), normal(3, 2, 3, 3), normal(2), np.array([1, 0, 1, 1])
    how = {"strides": [2, 2], "output_padding": [1, 1]}
    expected = by_onnx("ConvTranspose", [x, w, b], pads=pads.tolist(), **how)
    check("ConvTransposeWithDynamicPads", [x, w, pads, b], expected, weights=[1, 3], **how)


def crop(image, box, size, mode, outside):
    """image [C, H, W]"""
    result = np.full((len(image), *size), outside, np.float32)
    lines = [
        (box[a] * (n - 1) + np.arange(m) * (box[a + 2] - box[a]) * (n - 1) / (m - 1)) if m > 1
        else np.array([0.5 * (box[a] + box[a + 2]) * (n - 1)])
        for a, (n, m) in enumerate(zip(image.shape[1:], size, strict=True))
    ]  # fmt: skip
    for i, y in enumerate(lines[0]):
        for j, x in enumerate(lines[1]):
            if not (0 <= y <= image.shape[1] - 1 and 0 <= x <= image.shape[2] - 1):
                continue
            if mode == "nearest":
                result[:, i, j] = image[:, int(np.floor(y + 0.5)), int(np.floor(x + 0.5))]
                continue
            rows = [(int(y), 1 - y % 1), (min(int(y) + 1, image.shape[1] - 1), y % 1)]
            columns = [(int(x), 1 - x % 1), (min(int(x) + 1, image.shape[2] - 1), x % 1)]
            result[:, i, j] = sum(image[:, r, c] * p * q for r, p in rows for c, q in columns)
    return result


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 1)])
def test_crops(mode, size):
    images, owner = normal(2, 3, 6, 7), np.array([0, 1, 1, 0], np.int32)
    boxes = rng.uniform(-0.2, 1.2, (4, 4)).astype(np.float32)
    expected = np.stack([crop(images[o], box, size, mode, 5.0) for o, box in zip(owner, boxes, strict=True)])
    check("CropAndResize", [images, boxes, owner, np.array(size, np.int32)], expected, mode=mode,
          extrapolation_value=5.0, atol=1e-4)  # fmt: skip
