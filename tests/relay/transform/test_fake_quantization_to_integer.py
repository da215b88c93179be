"""FakeQuantizationToInteger: which operators compute on quantised values, and that results are those of the original
model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay import Call, Function, IRModule, analysis, build, const, op, optimize, var
from relayc.relay.expr import Expr, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn, qnn
from relayc.relay.op.base import OpDef
from relayc.relay.transform.canonicalize_quantization import CanonicalizeQuantization
from relayc.relay.transform.fake_quantization_to_integer import FakeQuantizationToInteger
from relayc.te.ir import PassContext, Sequential
from tests.processors import WITHOUT_BYTE_PRODUCTS

RNG = np.random.default_rng(11)
TARGET = Target(WITHOUT_BYTE_PRODUCTS)  # where 8-bit products are faster, Winograd's algorithm is rarer
ZEROS = {"uint8": (0, 113), "int8": (-128, 0, 5)}
QUANTIZED = [(dtype, zero) for dtype, zeros in ZEROS.items() for zero in zeros]


def count_operators(function: Function) -> Counter[str]:
    calls = [e for e in analysis.evaluation_order(function) if isinstance(e, Call)]
    return Counter(c.op.name for c in calls if isinstance(c.op, OpDef))


def quantized(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def data(shape: tuple[int, ...], dtype: str = "uint8", zero: int = 113, name: str = "x") -> tuple[Var, Expr]:
    x = var(name, shape=shape, dtype=dtype)
    return x, qnn.dequantize(x, 0.02, zero)


def weights(shape: tuple[int, ...], axis: int | None = 0, zero: int = 0) -> Expr:
    """Dequantised int8 weights, with a scale for each index of `axis`."""
    if axis is None:
        return qnn.dequantize(const(quantized(shape, "int8")), 0.004, zero)
    scales = RNG.uniform(0.001, 0.01, shape[axis]).astype(np.float32)
    return qnn.dequantize(const(quantized(shape, "int8")), scales, np.full(shape[axis], zero), axis=axis)


def rewritten(body: Expr, *params: Var) -> Function:
    module = IRModule({"main": Function(params, body)})
    function = Sequential((FakeQuantizationToInteger(TARGET), CanonicalizeQuantization()))(module)["main"]
    assert isinstance(function, Function)
    return function


def check(body: Expr, *params: Var, steps: int = 1, **options: str) -> Function:
    """The rewritten function, whose quantised results, interpreted and compiled, are off by at most `steps` and rarely
    at all."""
    function = rewritten(body, *params)
    inputs = [quantized(p.tensor_type.static_shape, str(p.dtype)) for p in params]
    expected = evaluate(Function(params, body), inputs)
    with PassContext(config={"relay.winograd": "off", **options}):
        lib = build(IRModule({"main": Function(params, body)}), TARGET)
    m = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for p, value in zip(params, inputs, strict=True):
        m.set_input(p.name, value)
    m.run()
    for found in (evaluate(function, inputs), m.get_output(0).numpy()):
        off = np.abs(found.astype(np.int64) - expected.astype(np.int64))
        assert found.dtype == expected.dtype
        assert off.max() <= steps, f"off by {off.max()}"
        assert (off > 0).mean() < 0.02
    assert len(np.unique(expected)) > 20, "the case is void: all quantised values are equal"
    return function


def requantised(x: Expr, scale: float = 0.05, zero: int = 120, dtype: str = "uint8") -> Expr:
    return qnn.quantize(x, scale, zero, out_dtype=dtype)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(("dtype", "zero"), QUANTIZED)
def test_products_sum_integers_and_round_once(dtype, zero, axis):
    x, real = data((9, 70), dtype, zero)
    product = nn.dense(real, weights((20, 70), axis))
    bias = const(RNG.uniform(-1, 1, 20).astype(np.float32))
    found = count_operators(check(requantised(op.add(product, bias)), x))
    assert found["divide"] == 0 and found["nn.dense"] == 1 and found["round"] == 1


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize(("dtype", "data_zero"), QUANTIZED)
def test_convolutions(dtype, data_zero, zero):
    x, real = data((1, 6, 9, 8), dtype, data_zero)
    conv = nn.conv2d(real, weights((10, 6, 3, 3), 0, zero), padding=(1, 1), strides=(2, 1))
    function = check(requantised(nn.relu(conv), 0.03, 0), x)
    assert count_operators(function)["nn.relu"] == 0, "saturation does it"
    assert "int32" in str(function)


@pytest.mark.parametrize("kind", ["floats", "quantised"])
def test_the_bias_of_a_convolution_is_added_in_units_of_the_result(kind):
    x, real = data((1, 6, 9, 8))
    bias: Expr = const(RNG.uniform(-1, 1, 10).astype(np.float32))
    if kind == "quantised":
        steps = const(RNG.integers(-9000, 9000, 10).astype(np.int32))
        bias = qnn.dequantize(steps, RNG.uniform(1e-4, 2e-4, 10).astype(np.float32), np.zeros(10, np.int32), axis=0)
    conv = nn.bias_add(nn.conv2d(real, weights((10, 6, 3, 3)), padding=(1, 1)), bias, axis=1)
    found = count_operators(check(requantised(nn.relu(conv), 0.03, 0), x))
    assert found["divide"] == 0 and found["round"] == 1 and found["nn.relu"] == 0


def test_weights_that_are_quantised_in_the_graph_are_constants():
    x, real = data((1, 6, 9, 8))
    scales, zeros = RNG.uniform(0.01, 0.02, 10).astype(np.float32), np.zeros(10, np.int8)
    floats = const(RNG.uniform(-1, 1, (10, 6, 3, 3)).astype(np.float32))
    weight = qnn.dequantize(qnn.quantize(floats, scales, zeros, axis=0, out_dtype="int8"), scales, zeros, axis=0)
    function = check(requantised(nn.conv2d(real, weight)), x)
    assert "int32" in str(function) and count_operators(function)["divide"] == 0


def test_sums_of_groups_are_carried_in_floats():
    x, real = data((1, 16, 9, 9))
    depthwise = nn.conv2d(real, weights((16, 1, 3, 3)), padding=(1, 1), groups=16)
    text = str(check(requantised(op.clip(depthwise, 0.0, 6.0), 6 / 255, 0), x))
    assert "clip(%" in text and text.count("clip") == 1, "the limits of the activation are those of the type"
    y, grouped = data((1, 16, 9, 9))
    check(requantised(nn.conv2d(grouped, weights((32, 4, 3, 3)), groups=4)), y)


def test_convolutions_by_winograd_are_off_by_a_step_at_most():
    x, real = data((1, 64, 28, 28))
    conv = nn.conv2d(real, weights((64, 64, 3, 3)), padding=(1, 1))
    assert 'dtype="int32"' not in str(rewritten(conv, x))
    check(requantised(conv, 0.2), x, **{"relay.winograd": "auto"})
    with PassContext(config={"relay.winograd": "off"}):
        assert 'dtype="int32"' in str(rewritten(conv, x))


def test_bytes_lie_between_convolutions_by_winograd():
    x, real = data((1, 64, 28, 28))
    first = qnn.dequantize(requantised(nn.conv2d(real, weights((64, 64, 3, 3)), padding=(1, 1)), 0.2, 0), 0.2, 0)
    body = requantised(nn.conv2d(first, weights((64, 64, 3, 3)), padding=(1, 1)), 0.2)
    text = str(optimize(IRModule({"main": Function((x,), body)}), TARGET)["main"])
    kernels = [part.split("}")[0] for part in text.split("fn (") if "nn.conv2d_nhwc_winograd" in part.split("}")[0]]
    assert len(kernels) == 2 and any("(1, 28, 28, 64), uint8], %p1" in k for k in kernels), "the second reads bytes"


def test_sums_of_two_tensors_and_means():
    (x, a), (y, b) = data((1, 8, 6, 6)), data((1, 8, 6, 6), "int8", 5, "y")
    total = count_operators(check(requantised(nn.relu(op.add(a, b)), 0.03, 7), x, y))
    assert total["divide"] == 0 and total["nn.relu"] == 1, "relu at a zero point inside of the range stays"
    z, c = data((1, 80, 4, 4))
    mean = op.mean(c, axis=(2, 3), keepdims=True)
    assert count_operators(check(requantised(op.reshape(mean, (1, 80)), 0.017171, 120), z))["divide"] == 0


@pytest.mark.parametrize("clipped", [nn.relu, lambda e: op.clip(e, 0.0, 1.0)], ids=["relu", "clip"])
@pytest.mark.parametrize("join", ["mean", "avg_pool", "add", "subtract"])
def test_activations_before_a_sum_are_not_left_to_its_saturation(clipped, join):
    (x, a), (y, b) = data((1, 12, 6, 6)), data((1, 160, 6, 6), name="y")
    active = clipped(nn.conv2d(a, weights((160, 12, 3, 3)), padding=(1, 1)))
    if join == "mean":
        check(requantised(op.mean(active, axis=(2, 3)), 2 / 255, 0), x)
    elif join == "avg_pool":
        check(requantised(nn.avg_pool2d(active, (2, 2), (2, 2)), 2 / 255, 0), x)
    else:
        check(requantised(op.add(active, b) if join == "add" else op.subtract(b, active), 0.0117171, 0), x, y)


def test_data_movement_and_maxima_work_on_quantised_values():
    x, real = data((1, 6, 8, 8))
    pooled = nn.max_pool2d(real, (3, 3), strides=(2, 2), padding=(1, 1))
    moved = op.strided_slice(op.transpose(op.reshape(pooled, (6, 4, 4)), (1, 2, 0)), (0,), (3,), axes=(0,))
    function = check(qnn.quantize(moved, 0.02, 113), x, steps=0)
    assert "float32" not in str(function), "the same scale on both ends: values stay quantised"


@pytest.mark.parametrize(("dtype", "zero"), QUANTIZED)
def test_relu_between_equal_scales_is_a_quantised_maximum(dtype, zero):
    x, real = data((4, 200), dtype, zero)
    function = check(qnn.quantize(nn.relu(real), 0.02, zero, out_dtype=dtype), x, steps=0)
    assert "float32" not in str(function) and count_operators(function)["maximum"] == 1
    other = rewritten(qnn.quantize(nn.relu(real), 0.03, zero, out_dtype=dtype), x)
    assert count_operators(other)["maximum"] == 0


def test_computed_parameters_stay_in_floats():
    x, real = data((4, 8))
    other = var("w", shape=(5, 8), dtype="float32")
    assert count_operators(rewritten(nn.dense(real, other), x, other))["divide"] == 0
    scales = RNG.uniform(0.001, 0.01, 8).astype(np.float32)
    along_depth = qnn.dequantize(const(quantized((5, 8), "int8")), scales, np.zeros(8), axis=1)
    text = str(rewritten(nn.dense(real, along_depth), x))
    assert "int32" not in text, "scales along the reduction are none of the result's"


def test_the_pass_can_be_disabled():
    x, real = data((4, 8))
    module = IRModule({"main": Function((x,), requantised(nn.dense(real, weights((5, 8)))))})
    with PassContext(disabled_pass=["FakeQuantizationToInteger"]):
        lib = build(module, "llvm")
    m = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    value = quantized((4, 8), "uint8")
    m.set_input("x", value)
    m.run()
    off = m.get_output(0).numpy().astype(int) - evaluate(module["main"], [value]).astype(int)
    assert np.abs(off).max() <= 1


def test_constants_may_be_quantised_and_factors_are_part_of_the_scale():
    x, real = data((9, 70))
    transposed = op.transpose(weights((70, 20), 1), (1, 0))
    bias = qnn.dequantize(const(quantized((20,), "uint8")), 0.01, 100)
    product = op.add(nn.dense(real, transposed), bias)
    eighth = qnn.dequantize(const(np.uint8(255)), 1 / (8 * 255), 0)
    found = count_operators(check(requantised(op.multiply(product, eighth), 0.05 / 8), x))
    assert found["divide"] == 0 and found["nn.dense"] == 1 and found["multiply"] == 1


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_concatenations_are_of_quantised_values(dtype):
    (x, a), (y, b) = data((1, 8, 6, 6), dtype, 5), data((1, 4, 6, 6), dtype, 5, "y")
    same = check(qnn.quantize(op.concatenate([a, b], axis=1), 0.02, 5, out_dtype=dtype), x, y, steps=0)
    assert "float32" not in str(same)
    z, c = data((1, 4, 6, 6), "uint8", 113, "z")
    apart = check(requantised(op.concatenate([a, c], axis=1), 0.03, 7, dtype), x, z)
    assert count_operators(apart)["divide"] == 0 and "12, 6, 6), float32" not in str(apart), "parts are rounded"
    activated = nn.relu(op.concatenate([a, b], axis=1))
    assert "12, 6, 6), float32" not in str(check(qnn.quantize(activated, 0.02, 5, out_dtype=dtype), x, y, steps=0))


def test_concatenated_products_round_once_and_stay_unsigned():
    x, real = data((9, 70))
    parts = [nn.dense(real, weights((20, 70))), nn.dense(real, weights((12, 70)))]
    codes_of_both = requantised(op.concatenate(parts, axis=1), 0.05, 3, "int8")
    function = check(codes_of_both, x)
    assert count_operators(function)["round"] == 2 and count_operators(function)["reinterpret"] == 1
    behind = nn.dense(qnn.dequantize(codes_of_both, 0.05, 3), weights((5, 32)))
    assert count_operators(check(requantised(behind, 0.3), x))["reinterpret"] == 0


def test_zero_padding_and_gathers_work_on_quantised_values():
    x, real = data((1, 6, 8, 8))
    border = ((0, 0), (0, 0), (1, 1), (2, 2))
    padded = op.take(nn.pad(real, border), const(np.arange(20) // 2), axis=2, mode="clip")
    function = check(qnn.quantize(padded, 0.02, 113), x, steps=0)
    assert "float32" not in str(function) and "pad_value=113" in str(function)
    (y, other), sevens = data((1, 6, 8, 8), name="y"), nn.pad(real, border, pad_value=7.0)
    assert count_operators(check(requantised(sevens), x))["divide"] == 1, "7.0 may be no code's"
    wide = nn.pad(op.add(real, other), border)
    assert count_operators(check(requantised(wide), x, y))["divide"] == 0
    indices = var("i", shape=(5,), dtype="int64")
    text = str(rewritten(op.take(weights((30, 4), None), indices, axis=0), indices))
    assert "(5, 4), int8" in text, "tables stay quantised"
