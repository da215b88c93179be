"""Activations and normalisations of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.frontends.node_cases import check, rejected

rng = np.random.default_rng(0)
EPSILON = 1e-5


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def gelu(x):
    return (0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(np.float32)


def fast_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3)))


def test_gelu_and_its_kin():
    x, bias = normal(3, 4, 5) * 3, normal(5)
    check("Gelu", [x], gelu(x))
    check("BiasGelu", [x, bias], gelu(x + bias), weights=[1])
    check("FastGelu", [x], fast_gelu(x))
    check("FastGelu", [x, bias], fast_gelu(x + bias), weights=[1])
    check("QuickGelu", [x], x / (1 + np.exp(-np.float32(1.702) * x)))
    check("QuickGelu", [x], x / (1 + np.exp(-x)), alpha=1.0)


def test_operators_promoted_to_onnx():
    x = normal(2, 4, 4)
    check("Trilu", [x, np.array(1)], np.triu(x, 1), weights=[1], upper=1)
    check("Trilu", [x], np.tril(x), upper=0)
    check("GatherND", [x, np.array([[0, 1], [1, 3]])], x[[0, 1], [1, 3]])
    check("ExpandDims", [x, np.array(1, np.int32)], x[:, None], weights=[1])


def test_a_bias_is_a_vector():
    rejected("BiasGelu", [normal(3, 4), normal(3, 4)], "a bias of rank 2")


# normalisations -------------------------------------------------------------------------------------------------------


def layer_norm(x, scale, bias=0.0, epsilon=EPSILON):
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias).astype(x.dtype)


def rms(x, epsilon=EPSILON):
    return np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_simplified_layer_normalization(domain):
    x, scale = normal(2, 3, 8), normal(8)
    attrs = {"domain": domain, "epsilon": EPSILON, "axis": -1, "stash_type": 1, "peer": domain == ""}
    expected = (x / rms(x) * scale).astype(np.float32)
    check("SimplifiedLayerNormalization", [x, scale], expected, **attrs)
    both = [expected, (1 / rms(x)).astype(np.float32)]
    check("SimplifiedLayerNormalization", [x, scale], both, outputs=2, **attrs)
    half = x.astype(np.float16)
    expected = (half / rms(half) * scale.astype(np.float16)).astype(np.float16)
    check("SimplifiedLayerNormalization", [half, scale.astype(np.float16)], expected, rtol=5e-3, atol=5e-3, **attrs)


def test_layer_normalization_in_an_old_opset():
    x, scale, bias = normal(2, 3, 8), normal(8), normal(8)
    attrs: dict[str, Any] = {"domain": "", "version": 14, "epsilon": EPSILON}
    check("LayerNormalization", [x, scale, bias], layer_norm(x, scale, bias), **attrs)
    check("LayerNormalization", [x, scale], layer_norm(x, scale), **attrs)


@pytest.mark.parametrize("skip_shape", [(2, 3, 8), (1, 3, 8), (3, 8)])
def test_skip_layer_normalization(skip_shape):
    x, skip, scale, beta, bias = normal(2, 3, 8), normal(*skip_shape), normal(8), normal(8), normal(8)
    total = x + skip + bias
    expected = [layer_norm(total, scale, beta), total]
    outputs = [True, False, False, True]
    check("SkipLayerNormalization", [x, skip, scale, beta, bias], expected, outputs=outputs, epsilon=EPSILON)
    expected = [layer_norm(x + skip, scale)]
    check("SkipLayerNormalization", [x, skip, scale], expected, epsilon=EPSILON)


@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 8)])
def test_skip_simplified_layer_normalization(shape):
    x, skip, scale, bias = normal(*shape), normal(*shape), normal(8), normal(8)
    total = x + skip + bias
    expected = [(total / rms(total) * scale).astype(np.float32), total]
    outputs = [True, False, False, True]
    check("SkipSimplifiedLayerNormalization", [x, skip, scale, bias], expected, outputs=outputs, epsilon=EPSILON)
    total = x + skip
    check("SkipSimplifiedLayerNormalization", [x, skip, scale], (total / rms(total) * scale).astype(np.float32),
          epsilon=EPSILON)  # fmt: skip


def test_normalisations_of_shapes_that_do_not_fit():
    x, scale = normal(2, 3, 8), normal(8)
    for inputs, text in [([x, normal(2, 8), scale], "a skip input"), ([x, x, normal(7)], "a vector of 8")]:
        rejected("SkipLayerNormalization", inputs, text)


@pytest.mark.parametrize("with_segments", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
def test_embed_layer_normalization(with_segments, with_mask):
    batch, length, hidden = 2, 4, 8
    words = rng.integers(0, 10, (batch, length)).astype(np.int32)
    segments = rng.integers(0, 2, (batch, length)).astype(np.int32) if with_segments else None
    tables = [normal(10, hidden), normal(6, hidden), normal(2, hidden) if with_segments else None]
    scale, bias = normal(hidden), normal(hidden)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32) if with_mask else None
    total = tables[0][words] + tables[1][:length]
    total = total + tables[2][segments] if with_segments else total
    counts = np.array([3, 2] if with_mask else [0, 0], np.int32)
    inputs = [words, segments, *tables, scale, bias, mask]
    expected = [layer_norm(total, scale, bias), counts, total]
    kept = [i for i in (2, 3, 4, 5, 6) if inputs[i] is not None]
    check("EmbedLayerNormalization", inputs, expected, outputs=3, weights=kept, epsilon=EPSILON)


def test_embeddings_at_explicit_positions():
    words, positions = np.array([[1, 2, 3]], np.int32), np.array([[2, 0, 1]], np.int32)
    tables, scale, bias = [normal(5, 8), normal(4, 8)], normal(8), normal(8)
    total = tables[0][words] + tables[1][positions]
    inputs = [words, None, *tables, None, scale, bias, None, positions]
    expected = [layer_norm(total, scale, bias), np.zeros(1, np.int32)]
    check("EmbedLayerNormalization", inputs, expected, outputs=2, epsilon=EPSILON)


# sums and gates -------------------------------------------------------------------------------------------------------


def test_sums_with_biases():
    x, bias, skip = normal(2, 3, 8), normal(8), normal(2, 3, 8)
    check("BiasAdd", [x, bias, skip], x + bias + skip, peer=False)
    check("BiasSplitGelu", [x, bias], (x + bias)[..., :4] * gelu((x + bias)[..., 4:]), peer=False)
    check("BiasDropout", [x, bias, skip], [x + bias + skip, np.ones(x.shape, bool)], outputs=2, peer=False)
    rejected("BiasDropout", [x, bias, skip, np.float32(0.5), np.array(True)], "training_mode", weights=[4])
    scores, mask = normal(2, 3, 4, 5), normal(2, 1, 1, 5)
    total = np.exp(scores + mask)
    check("BiasSoftmax", [scores, mask], total / total.sum(-1, keepdims=True), axis=3, is_inner_broadcast=1, peer=False)
    mask = normal(3, 4, 5)
    total = np.exp(scores + mask).reshape(6, 20)
    expected = (total / total.sum(-1, keepdims=True)).reshape(scores.shape)
    check("BiasSoftmax", [scores, mask], expected, axis=2, is_inner_broadcast=0, peer=False)


def test_gates():
    x, y, gate = normal(3, 4), normal(3, 4), normal(3, 1)
    check("GatedAdd", [x, y, gate], x + y * gate)
    check("ScaledSiLU", [x], 2 * x / (1 + np.exp(-2 * x)), alpha=2.0)
    check("ScaledSiLU", [x, np.array(3, np.float32)], 3 * x / (1 + np.exp(-3 * x)))
    rows, scale, gates = normal(2, 3, 12), normal(4), normal(2, 3, 12)
    heads = rows.reshape(2, 3, 3, 4)
    normed = (heads / rms(heads) * scale).reshape(rows.shape).astype(np.float32)
    check("GatedRMSNorm", [rows, scale, gates], normed * gates / (1 + np.exp(-gates)))
    check("GatedRMSNorm", [rows, scale, gates], normed / (1 + np.exp(-gates)), activation="sigmoid")


def test_integers_and_finite_numbers():
    a, b = rng.integers(0, 256, (3, 4)).astype(np.uint8), rng.integers(-128, 128, 4).astype(np.int8)
    wide = (a.astype(np.int32) - 3) * (b.astype(np.int32) + 7)
    check("MulInteger", [a, np.uint8(3), b, np.int8(-7)], wide, peer=False)
    x, odd = normal(3), np.array([1, np.nan, np.inf], np.float32)
    for inputs, flags, expected in (([x, x], {}, True), ([x, odd], {}, False), ([odd[:2]], {"isinf_only": 1}, True),
                                    ([odd[::2]], {"isnan_only": 1}, True)):  # fmt: skip
        check("IsAllFinite", inputs, np.array(expected), peer=False, **flags)


# groups of channels ---------------------------------------------------------------------------------------------------


def group_norm(x, scale, bias, groups):
    """x [N, H, W, C]"""
    n, h, w, c = x.shape
    grouped = x.reshape(n, h * w, groups, c // groups).astype(np.float64)
    centred = grouped - grouped.mean((1, 3), keepdims=True)
    normed = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + EPSILON)
    return (normed.reshape(x.shape) * scale + bias).astype(np.float32)


@pytest.mark.parametrize("channels_last", [0, 1])
def test_group_norm(channels_last):
    x, scale, bias, skip, last = normal(2, 4, 5, 6), normal(6), normal(6), normal(2, 6), normal(6)

    def laid(v):
        return v if channels_last else v.transpose(0, 3, 1, 2)

    how = {"groups": 2, "channels_last": channels_last, "peer": False}
    normed = group_norm(x, scale, bias, 2)
    check("GroupNorm", [laid(x), scale, bias], laid(normed), activation=0, **how)
    check("GroupNorm", [laid(x), scale, bias], laid(normed / (1 + np.exp(-normed))), activation=1, **how)
    total = x + skip[:, None, None] + last
    check("SkipGroupNorm", [laid(x), scale, bias, skip, last], [laid(group_norm(total, scale, bias, 2)), laid(total)],
          activation=0, outputs=2, **how)  # fmt: skip


# operators promoted to ONNX -------------------------------------------------------------------------------------------


def test_ranges_pads_and_distances():
    check("Range", [np.array(1, np.int32), np.array(9, np.int32)], np.arange(1, 9, dtype=np.int32))
    check("Range", [np.array(1.0), np.array(3.1), np.array(0.5)], np.arange(1, 3.1, 0.5))
    x, pads = normal(4, 3), np.array([[0, 1, 2, 0]])
    check("Pad", [x, pads[0], np.array([7], np.float32)], np.pad(x, ((0, 2), (1, 0)), constant_values=7))
    check("Pad", [x, pads[0]], np.pad(x, ((0, 2), (1, 0)), mode="reflect"), mode="reflect", weights=[1])
    check("Pad", [x, pads], np.pad(x, ((0, 2), (1, 0)), mode="edge"), mode="edge")
    check("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)],
          [np.array([2, 1, 3, 4], np.float32), np.array([0, 1, 1, 2, 3, 2]), np.array([1, 2, 2, 1])],
          outputs=3)  # fmt: skip
    a, b = normal(3, 4), normal(5, 4)
    squares = ((a[:, None] - b) ** 2).sum(-1)
    check("CDist", [a, b], squares)
    check("CDist", [a, b], np.sqrt(squares), metric="euclidean")


def test_grid_sample_at_pixels():
    x = normal(1, 2, 4, 5)
    rows, columns = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    grid = np.stack([columns, rows], -1)[None].astype(np.float32)
    for mode in ("bilinear", "nearest", "bicubic"):
        check("GridSample", [x, grid[:, ::-1]], x[:, :, ::-1], mode=mode, align_corners=1, padding_mode="border")
