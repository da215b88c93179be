"""Matrix products and convolutions of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

import platform
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relayc.frontends.onnx import from_onnx
from tests.frontends.node_cases import check, node_model, rejected

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("trans_a", "trans_b", "alpha"), [(0, 0, 1.0), (1, 0, 0.5), (0, 1, 2.0), (1, 1, -1.0)])
def test_fused_mat_mul(trans_a, trans_b, alpha):
    a, b = normal(2, 3, 4, 5), normal(2, 3, 5, 6)
    expected = np.float32(alpha) * (a @ b)
    a = np.ascontiguousarray(a.swapaxes(-1, -2)) if trans_a else a
    b = np.ascontiguousarray(b.swapaxes(-1, -2)) if trans_b else b
    check("FusedMatMul", [a, b], expected, transA=trans_a, transB=trans_b, alpha=alpha)


def test_fused_mat_mul_with_weights_and_transposed_batches():
    a, b = normal(3, 4, 5), normal(6, 5)
    check("FusedMatMul", [a, b], a @ b.T * np.float32(0.25), weights=[1], transB=1, alpha=0.25)
    rows_first = normal(4, 2, 3, 5)  # [M, batch, batch, K]
    b = normal(2, 3, 5, 6)
    expected = np.moveaxis(rows_first, 0, -2) @ b
    check("FusedMatMul", [rows_first, b], expected, transBatchA=1)
    depth_first = normal(5, 2, 3, 6)
    expected = np.moveaxis(rows_first, 0, -2) @ np.moveaxis(depth_first, 0, -2)
    check("FusedMatMul", [rows_first, depth_first], expected, transBatchA=1, transBatchB=1)


ACTIVATIONS = {
    "Relu": ({"activation_alpha": 0.5}, lambda x: np.maximum(x, 0)),  # of no use to it
    "LeakyRelu": ({"activation_alpha": 0.2}, lambda x: np.where(x < 0, np.float32(0.2) * x, x)),
    "Sigmoid": ({}, lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": ({}, np.tanh),
    "HardSigmoid": (
        {"activation_alpha": 0.3, "activation_beta": 0.4},
        lambda x: np.clip(np.float32(0.3) * x + np.float32(0.4), 0, 1),
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_gemm(name):
    params, function = ACTIVATIONS[name]
    a, b, c = normal(4, 3), normal(5, 4), normal(5)
    expected = function(np.float32(0.5) * (a.T @ b.T) + np.float32(2) * c)
    attrs = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0, "activation": name, **params}
    check("FusedGemm", [a, b, c], expected, weights=[1, 2], **attrs)


def convolved(x, w, b):
    """3x3, padded by one."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]


@pytest.mark.parametrize(
    ("activation", "params", "function"),
    [
        ("Relu", None, lambda x: np.maximum(x, 0)),
        ("LeakyRelu", [0.2], lambda x: np.where(x < 0, np.float32(0.2) * x, x)),
        ("Clip", [0.0, 1.5], lambda x: np.clip(x, 0, 1.5)),
        ("HardSigmoid", [0.3, 0.4], lambda x: np.clip(np.float32(0.3) * x + np.float32(0.4), 0, 1)),
    ],
)
def test_fused_conv(activation, params, function):
    x, w, b = normal(1, 3, 6, 7), normal(4, 3, 3, 3), normal(4)
    attrs: dict[str, Any] = {"activation": activation, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if params is not None:
        attrs["activation_params"] = params
    check("FusedConv", [x, w, b], function(convolved(x, w, b)), weights=[1, 2], **attrs)
    z = normal(1, 4, 6, 7)
    check("FusedConv", [x, w, b, z], function(convolved(x, w, b) + z), weights=[1, 2], **attrs)


def test_activations_that_are_not_known_are_rejected_by_name():
    rejected("FusedGemm", [normal(2, 3), normal(3, 4), normal(4)], "'Swirl'", activation="Swirl")


# low-bit weights ------------------------------------------------------------------------------------------------------


def packed(codes, bits):
    """Pack values [.., n] into bytes, lowest bits first."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_byte)])
    fields = padded.reshape(*codes.shape[:-1], -1, per_byte).astype(np.uint8)
    return np.bitwise_or.reduce(fields << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["default", "packed", "floats"])
@pytest.mark.parametrize(("depth", "block"), [(64, 32), (40, 16)])
def test_mat_mul_n_bits(bits, zeros, depth, block):
    columns, blocks = 6, -(-depth // block)
    codes = rng.integers(0, 1 << bits, (columns, blocks, block))
    scales = rng.uniform(0.1, 1.0, (columns, blocks)).astype(np.float32)
    points = rng.integers(0, 1 << bits, (columns, blocks))
    passed: Any = {"default": None, "packed": packed(points, bits), "floats": points.astype(np.float32)}[zeros]
    centre = np.full_like(points, 1 << (bits - 1)) if zeros == "default" else points
    real = ((codes - centre[..., None]) * scales[..., None]).reshape(columns, -1)[:, :depth].astype(np.float32)
    x, bias = normal(2, 3, depth), normal(columns)
    inputs = [x, packed(codes, bits), scales, passed, None, bias]
    attrs = {"bits": bits, "block_size": block, "N": columns, "K": depth}
    peer = bits == 4 or zeros != "floats"  # onnxruntime has no others
    check("MatMulNBits", inputs, x @ real.T + bias, weights=[1, 2, 3, 5], rtol=1e-3, atol=1e-3, peer=peer, **attrs)
    check("MatMulNBits", [*inputs[:3], passed], x @ real.T, rtol=1e-3, atol=1e-3, peer=False, **attrs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 128])
def test_data_of_mat_mul_n_bits_become_int8_as_in_onnxruntime(bits, block):
    """Columns of one code 1 pass the rounded data on: codes, scales and products are equal bit for bit."""
    rows, depth = 64, 256
    codes, x = np.eye(depth, dtype=np.uint8).reshape(depth, -1, block), normal(rows, depth)
    x[0], x[1, :block], x[2, :block] = 0, 1e-40, np.arange(block) - block / 2  # ties
    points = np.zeros((depth, depth // block), np.uint8)
    inputs = [x, packed(codes, bits), np.ones(points.shape, np.float32), packed(points, bits)]
    blocks = x.reshape(rows, -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.where(largest > 1e-36, np.float32(127) / np.maximum(largest, np.float32(1e-36)), 0)
    expected = (np.rint(blocks * inverse.astype(np.float32)) * (largest / np.float32(127))).reshape(x.shape)
    attrs = {"bits": bits, "block_size": block, "N": depth, "K": depth, "accuracy_level": 4}
    peer = platform.machine() in ("x86_64", "AMD64")  # elsewhere onnxruntime divides by the rounded scale
    check("MatMulNBits", inputs, expected, weights=[1, 2, 3], rtol=0, atol=0, peer=peer, **attrs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zeros", [True, False])
@pytest.mark.parametrize("depth", [40, 48])
def test_gather_block_quantized(bits, with_zeros, depth):
    rows, block = 10, 16
    codes = rng.integers(0, 1 << bits, (rows, depth))
    scales = rng.uniform(0.1, 1.0, (rows, 3)).astype(np.float32)
    points = rng.integers(0, 1 << bits, scales.shape) if with_zeros else np.full(scales.shape, 1 << (bits - 1))
    real = ((codes - points.repeat(block, 1)[:, :depth]) * scales.repeat(block, 1)[:, :depth]).astype(np.float32)
    indices = np.array([[3, -1, 0], [9, 3, 5]])
    inputs = [packed(codes, bits), indices, scales, packed(points, bits) if with_zeros else None]
    attrs = {"bits": bits, "block_size": block, "quantize_axis": 1, "gather_axis": 0}
    check("GatherBlockQuantized", inputs, real[indices], weights=[0, 2, 3], **attrs)
    outside = np.array([2, 10, -11])  # zeros, unlike what Gather gives
    expected = np.stack([real[2], np.zeros(depth, np.float32), np.zeros(depth, np.float32)])
    check("GatherBlockQuantized", [inputs[0], outside, *inputs[2:]], expected, weights=[0, 2, 3], **attrs)


@pytest.mark.parametrize("with_zeros", [True, False])
@pytest.mark.parametrize("depth", [40, 48])
def test_slices_of_bytes_in_blocks(with_zeros, depth):
    """Slices are of a table of three dimensions; only what is taken is unpacked."""
    shape, block = (7, 3, depth), 16
    codes, scales = rng.integers(0, 16, shape), rng.uniform(0.1, 1.0, (7, 3, 3)).astype(np.float32)
    points = rng.integers(0, 16, scales.shape) if with_zeros else np.full(scales.shape, 8)
    real = ((codes - points.repeat(block, 2)[..., :depth]) * scales.repeat(block, 2)[..., :depth]).astype(np.float32)
    real = np.concatenate([real, np.zeros((1, *shape[1:]), np.float32)])  # of invalid indices
    indices = np.array([[3, -1, 0], [6, 7, 5]])
    inputs = [packed(codes, 4), indices, scales, packed(points, 4) if with_zeros else None]
    attrs = {"bits": 4, "block_size": block, "quantize_axis": 2, "gather_axis": 0}
    check("GatherBlockQuantized", inputs, real[np.where(indices < 0, indices - 1, indices)], weights=[0, 2, 3], **attrs)


@pytest.mark.parametrize("kind", [ml_dtypes.uint4, ml_dtypes.int4])
@pytest.mark.parametrize("with_zeros", [True, False])
@pytest.mark.parametrize(("shape", "taken", "blocked"), [((6, 3, 40), 0, 2), ((6, 40, 3), 0, 1), ((3, 6, 40), 1, 2),
                                                         ((40, 6, 3), 1, 0), ((3, 40, 6), -1, 1), ((40, 6), 0, 0),
                                                         ((3, 40), 1, 1)])  # fmt: skip
def test_slices_along_any_axis_of_tables_in_blocks(shape, taken, blocked, with_zeros, kind):
    block, blocks = 16, [*shape]
    blocks[blocked] = 3
    codes, scales = rng.integers(0, 8, shape), rng.uniform(0.1, 1.0, blocks).astype(np.float32)
    points = rng.integers(0, 8, blocks) if with_zeros else np.zeros(blocks, np.int64)

    def spread(x):
        return x.repeat(block, blocked).take(range(shape[blocked]), blocked)

    real = ((codes - spread(points)) * spread(scales)).astype(np.float32)
    indices = np.array([[3, -1], [0, 2]])
    inputs = [codes.astype(kind), indices, scales, points.astype(kind) if with_zeros else None]
    attrs = {"block_size": block, "quantize_axis": blocked, "gather_axis": taken}
    check("GatherBlockQuantized", inputs, np.take(real, indices, taken), weights=[0, 2, 3], **attrs)


@pytest.mark.parametrize("lead", [(7,), (7, 3)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_slices_of_bytes_at_a_dynamic_number_of_indices(bits, lead):
    """As in decoders whose embedding is the table of their last layer."""
    depth, block = 32, 16
    codes, scales = rng.integers(0, 1 << bits, (*lead, depth)), rng.uniform(0.1, 1.0, (*lead, 2)).astype(np.float32)
    real = ((codes - (1 << (bits - 1))) * scales.repeat(block, -1)).astype(np.float32)
    indices = np.array([[3, -1, 0], [6, 2, 5]])
    attrs = {"bits": bits, "block_size": block, "quantize_axis": len(lead), "gather_axis": 0}
    inputs = [packed(codes, bits), indices, scales]
    dims = {1: ["batch", "sequence"]}
    check("GatherBlockQuantized", inputs, real[indices], weights=[0, 2], dims=dims, **attrs)
    mod, _ = from_onnx(node_model("GatherBlockQuantized", inputs, weights=[0, 2], dims=dims, **attrs)[0])
    assert mod["main"].ret_type.shape[2:] == (*lead[1:], depth)


def test_invalid_mat_mul_n_bits_are_rejected():
    x, codes, scales = normal(2, 32), np.zeros((4, 1, 16), np.uint8), np.ones((4, 1), np.float32)
    attrs = {"bits": 4, "block_size": 32, "N": 4, "K": 32}
    for inputs, changed, text in [
        ([x, codes, scales], {"bits": 3}, "3 bits"),
        ([x, codes, scales], {"block_size": 24}, "blocks of 24"),
        ([x, codes[:, :, :8], scales], {}, "shape .4, 1, 8."),
        ([x[:, :30], codes, scales], {}, "K = 32"),
        ([x, codes, scales[:3]], {}, "the scales"),
    ]:
        rejected("MatMulNBits", inputs, text, **{**attrs, **changed})


def quantized_range(x):
    """uint8 values, scale and zero point of DynamicQuantizeLinear."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale, int(zero)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("per_column", [False, True])
def test_dynamic_quantize_mat_mul(signed, per_column):
    x, bias = normal(2, 4, 8), normal(5)
    kind = np.int8 if signed else np.uint8
    b = rng.integers(-60 if signed else 0, 60, (8, 5)).astype(kind)
    scale = rng.uniform(0.01, 0.1, 5 if per_column else ()).astype(np.float32)
    zero = rng.integers(0, 10, 5 if per_column else ()).astype(kind)
    values, x_scale, x_zero = quantized_range(x)
    product = (values - x_zero) @ (b.astype(np.int64) - zero) * (x_scale * scale)
    inputs = [x, b, scale, zero, bias]
    check("DynamicQuantizeMatMul", inputs, (product + bias).astype(np.float32), weights=[1, 2, 3, 4], atol=1e-3)
    plain = (values - x_zero) @ b.astype(np.int64) * (x_scale * scale)
    check("DynamicQuantizeMatMul", inputs[:3], plain.astype(np.float32), weights=[1, 2], atol=1e-3)


def test_dynamic_quantization_rounds_as_onnxruntime_does():
    """Bit for bit: the scale is a quotient, values are divided by it, and exact sums are multiplied by one scale."""
    x, b = normal(33, 1024), rng.integers(-127, 128, (1024, 48)).astype(np.int8)
    scale = rng.uniform(0.001, 0.002, 48).astype(np.float32)
    values, x_scale, x_zero = quantized_range(x)
    sums = ((values - x_zero) @ b.astype(np.int64)).astype(np.float32)
    check("DynamicQuantizeMatMul", [x, b, scale], sums * (x_scale * scale), weights=[1, 2], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("kinds", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_mat_mul_integer_to_float(kinds):
    a = rng.integers(0, 100, (3, 4, 8)).astype(kinds[0])
    b = rng.integers(0, 60, (8, 5)).astype(kinds[1])
    a_scale, b_scale = np.float32(0.02), rng.uniform(0.01, 0.1, 5).astype(np.float32)
    a_zero, b_zero = np.array(7, kinds[0]), rng.integers(0, 10, 5).astype(kinds[1])
    bias = normal(5)
    product = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero) * (a_scale * b_scale)
    inputs = [a, b, np.array(a_scale), b_scale, a_zero, b_zero, bias]
    check("MatMulIntegerToFloat", inputs, (product + bias).astype(np.float32), weights=[1, 2, 3, 4, 5, 6])
    plain = a.astype(np.int64) @ b.astype(np.int64) * (a_scale * b_scale)
    check("MatMulIntegerToFloat", inputs[:4], plain.astype(np.float32))


def test_inverse():
    x = normal(2, 4, 4) + 2 * np.eye(4, dtype=np.float32)
    check("Inverse", [x], np.linalg.inv(x), rtol=1e-3, atol=1e-4)
    swapped = np.array([[0, 2], [4, 0]], np.float64)  # no pivot where it is looked for first
    check("Inverse", [swapped], np.array([[0, 0.25], [0.5, 0]]))


def test_mat_mul_of_16_bit_integers():
    a, b = rng.integers(-300, 300, (3, 4)).astype(np.int16), rng.integers(-300, 300, (4, 2)).astype(np.int16)
    check("MatMulInteger16", [a, b], a.astype(np.int32) @ b.astype(np.int32))


def test_a_product_and_an_activation():
    a, b = normal(3, 4), normal(5, 4)
    check("FusedMatMulActivation", [a, b], np.maximum(a @ b.T, 0), transB=1, activation="Relu", peer=False)


NF4 = [-1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.07958030, 0.16093020,
       0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0]  # fmt: skip
FP4 = [0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]


@pytest.mark.parametrize("depth", [32, 24])  # rows of whole blocks, and others
@pytest.mark.parametrize(("kind", "table"), [(0, [*FP4, *[-v for v in FP4]]), (1, NF4)])
def test_weights_of_four_bit_floats_and_quantiles(kind, table, depth):
    codes, largest = rng.integers(0, 16, 6 * depth), np.abs(normal(6 * depth // 16))
    weights = (np.array(table, np.float32)[codes] * largest.repeat(16)).reshape(6, depth)
    stored, a = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8), normal(3, depth)
    inputs, whole = [a, stored, largest], depth % 16 == 0
    check("MatMulBnb4", inputs, a @ weights.T, weights=[1, 2], K=depth, N=6, block_size=16, quant_type=kind, peer=whole)
