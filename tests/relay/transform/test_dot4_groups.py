"""Int8 weights packed for 4-way dot products: sums are exact, none exceeds 16 bits, and kernels are as exact."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay import Expr, Function, const, op, var
from relayc.relay.op import nn
from relayc.relay.op.nn.dot4 import DenseDot4Groups
from relayc.relay.transform.dot4_groups import pack_dot4_groups
from relayc.relay.transform.panels import PanelPacker
from relayc.te.ir import IRModule
from tests.processors import BYTE_PRODUCTS, WITHOUT_BYTE_PRODUCTS

RNG = np.random.default_rng(4)


def normal(shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return np.clip(np.rint(RNG.normal(0, deviation, shape)), -128, 127).astype(np.int8)


def check(weight: np.ndarray, words: np.ndarray, table: np.ndarray) -> None:
    """Check that 16-bit sums do not overflow, and that panels represent the weight."""
    panels, steps, count, width = words.shape
    int8_weights = words.view(np.int8).reshape(panels, steps, count, width, 2, 2).astype(np.int32)
    for sign in (1, -1):
        assert np.maximum(sign * int8_weights, 0).sum((2, 5)).max() <= 128
    data = RNG.integers(0, 256, (5, weight.shape[1])).astype(np.uint8)
    sums = DenseDot4Groups(units=len(weight)).reference(data.view(np.int32), words, table)
    np.testing.assert_array_equal(sums, data.astype(np.int32) @ weight.T.astype(np.int32))


def packed(weight: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    panels = PanelPacker()
    found = pack_dot4_groups(panels, weight, width)
    panels.run()
    return found


@pytest.mark.parametrize("columns", [48, 27])
@pytest.mark.parametrize("width", [8, 24])
@pytest.mark.parametrize("deviation", [10, 20])
def test_words_are_paired_if_their_sums_fit(columns, width, deviation):
    weight = normal((columns, 256), deviation)
    weight[3, 8:12] = (-128, -128, 127, 127)
    found = packed(weight, width)
    assert found is not None and found[0].shape[1:3] in [(s, 2) for s in range(32, 42)], "32, and some for the rest"
    check(weight, *found)


def test_words_whose_sums_overflow_stay_single():
    weight = normal((32, 256), 36)
    found = packed(weight, 8)
    assert found is not None and found[0].shape[1:3] in [(s, 1) for s in range(65, 85)], "64, and some for the rest"
    check(weight, *found)


@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("depth", [4, 12, 36])
def test_few_weights_are_packed_too(columns, depth):
    weight = normal((columns, depth), 15)
    found = packed(weight, 1 << (columns - 1).bit_length())
    assert found is not None
    check(weight, *found)


def test_large_weights_are_multiplied_as_16_bit_pairs():
    assert packed(RNG.choice([-128, 127], (16, 64)).astype(np.int8), 8) is None


def run(body: Expr, data: dict[Expr, np.ndarray], target: str) -> tuple[np.ndarray, str]:
    """The result, and the optimised program."""
    module = IRModule({"main": Function(tuple(data), body)})
    lib = relay.build(module, target)
    executor = graph_executor.GraphModule(lib["default"](device("cpu")))
    for x, value in data.items():
        executor.set_input(x.name, value)
    executor.run()
    return executor.get_output(0).numpy(), str(relay.optimize(module, target)["main"])


def quantized(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize("target", BYTE_PRODUCTS)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 255), ("int8", -128), ("int8", 3)])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 64, 24), (9, 64, 50), (40, 768, 64), (7, 32, 16), (9, 67, 30)]
)
@pytest.mark.parametrize("deviation", [12, 24])
def test_products_are_exact(dtype, zero, rows, depth, columns, deviation, target):
    x, weight = var("x", shape=(rows, depth), dtype=dtype), normal((depth, columns), deviation)
    weight[1:3, 2] = 127, 126
    centred = op.subtract(op.cast(x, "int32"), const(np.int32(zero)))
    data = quantized((rows, depth), dtype)
    body = nn.batch_matmul(centred, const(weight.astype(np.int32)), transpose_b=False)
    got, text = run(body, {x: data}, target)
    np.testing.assert_array_equal(got, (data.astype(np.int32) - zero) @ weight.astype(np.int32))
    assert "nn.dense_dot4" in text


@pytest.mark.parametrize("target", BYTE_PRODUCTS)
@pytest.mark.parametrize("shape", [(), (1,), (9, 1)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("deviation", [20, 100])
def test_zero_points_may_be_computed(shape, dtype, deviation, target):
    x, z = var("x", shape=(9, 64), dtype=dtype), var("z", shape=shape, dtype=dtype)
    weight = normal((30, 64), deviation)
    centred = op.subtract(op.cast(x, "int32"), op.cast(z, "int32"))
    data, zero = quantized((9, 64), dtype), quantized(shape, dtype)
    got, text = run(nn.dense(centred, const(weight.astype(np.int32))), {x: data, z: zero}, target)
    np.testing.assert_array_equal(got, (data.astype(np.int32) - zero) @ weight.T.astype(np.int32))
    by_fours = deviation == 20 or target != WITHOUT_BYTE_PRODUCTS
    assert ("nn.dense_dot4" in text) == by_fours and "%p0: Tensor[(9, 64), int32]" not in text


@pytest.mark.parametrize("target", BYTE_PRODUCTS)
@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilation"),
    [((1, 1), (1, 1), (0, 0), (1, 1)), ((1, 1), (2, 2), (0, 0), (1, 1)), ((3, 3), (1, 1), (1, 1), (1, 1)),
     ((3, 2), (2, 1), (1, 0), (1, 2))],
)  # fmt: skip
@pytest.mark.parametrize("deviation", [12, 24])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 7), ("int8", -1)])
def test_convolutions_are_exact_up_to_the_border(kernel, strides, padding, dilation, deviation, dtype, zero, target):
    x, weight = var("x", shape=(2, 32, 9, 10), dtype=dtype), normal((20, 32, *kernel), deviation)
    weight[0, 2:4, 0, 0] = -128
    centred = op.subtract(op.cast(x, "int32"), const(np.int32(zero)))
    wide = const(weight.astype(np.int32))
    body = nn.conv2d(centred, wide, strides=strides, padding=padding, dilation=dilation)
    data = quantized((2, 32, 9, 10), dtype)
    got, text = run(body, {x: data}, target)
    np.testing.assert_array_equal(got, body.op.reference(data.astype(np.int32) - zero, wide.data))
    assert "dot4" in text


@pytest.mark.parametrize("target", BYTE_PRODUCTS)
@pytest.mark.parametrize("case", ["few channels", "wide weights", "wide data"])
def test_other_products_are_not_8_bit(case, target):
    depth = 5 if case == "few channels" else 64
    x = var("x", shape=(9, depth), dtype="int16" if case == "wide data" else "uint8")
    weight = normal((30, depth), 20).astype(np.int32)
    weight[0, 0] = 128 if case == "wide weights" else 0
    data = quantized((9, depth), str(x.dtype))
    got, text = run(nn.dense(op.cast(x, "int32"), const(weight)), {x: data}, target)
    np.testing.assert_array_equal(got, data.astype(np.int32) @ weight.T)
    assert "dot4" not in text


@pytest.mark.parametrize("target", BYTE_PRODUCTS)
def test_images_of_three_channels_get_a_fourth(target):
    x, weight = var("x", shape=(1, 3, 20, 20), dtype="uint8"), normal((16, 3, 7, 7), 25)
    centred = op.subtract(op.cast(x, "int32"), const(np.int32(114)))
    body = nn.conv2d(centred, const(weight.astype(np.int32)), strides=(2, 2), padding=(3, 3))
    data = quantized((1, 3, 20, 20), "uint8")
    got, text = run(body, {x: data}, target)
    np.testing.assert_array_equal(got, body.op.reference(data.astype(np.int32) - 114, weight.astype(np.int32)))
    assert "nn.window_dot4_groups" in text or "nn.conv2d_nhwc_dot4" in text


@pytest.mark.parametrize(("cpu", "register"), [("icelake-server", "zmm"), ("alderlake", "ymm")])
def test_one_instruction_multiplies_and_adds_four_bytes_where_there_is_one(cpu, register):
    x, weight = var("x", shape=(64, 256), dtype="int8"), RNG.integers(-128, 128, (64, 256)).astype(np.int32)
    product = nn.dense(op.subtract(op.cast(x, "int32"), const(np.int32(3))), const(weight))
    module = IRModule({"main": Function((x,), product)})
    target = f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}"
    assert "nn.dense_dot4(%p0, %p1, units" in str(relay.optimize(module, target)["main"]), "no table: sums have room"
    assembly = relay.build(module, target).module.get_source("asm")
    assert "vpmaddubsw" not in assembly
    assert sum("vpdpbusd" in line and register in line for line in assembly.splitlines()) >= 8
