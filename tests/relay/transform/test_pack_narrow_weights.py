"""PackWeights, constants narrower than the computation: packed in their type, widened panel by panel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay import Expr, Function, analysis, const, op, var
from relayc.relay.op import nn
from relayc.te.ir import IRModule
from relayc.topi.cpu.tiling import has_bfloat16_products
from tests.processors import WITHOUT_BYTE_PRODUCTS

RNG = np.random.default_rng(3)
HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def run(body: Expr, x: Expr, data: np.ndarray, target: str = "llvm") -> tuple[np.ndarray, set[str]]:
    """The result, and the element types of the weights."""
    lib = relay.build(IRModule({"main": Function((x,), body)}), target)
    module = graph_executor.GraphModule(lib["default"](device("cpu")))
    module.set_input("x", data)
    module.run()
    return module.get_output(0).numpy(), {str(p.dtype) for p in lib.params.values() if p.ndim > 2}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("columns", [16, 50])
def test_products_with_half_precision_weights_are_summed_in_float32(dtype, rows, columns):
    x = var("x", shape=(rows, 96), dtype=dtype)
    weight = RNG.standard_normal((columns, 96)).astype(HALF[dtype])
    data = RNG.standard_normal((rows, 96)).astype(HALF[dtype])
    got, kept = run(nn.relu(nn.dense(x, const(weight))), x, data)
    exact = np.maximum(data.astype(np.float64) @ weight.astype(np.float64).T, 0).astype(HALF[dtype])
    in_pairs = dtype == "bfloat16" and has_bfloat16_products(Target("llvm"))
    assert kept == {"int32" if in_pairs else dtype} and got.dtype == HALF[dtype]
    assert (got == exact).mean() > 0.98  # the rest is rounded from the other side of the middle


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_with_half_precision_weights_are_summed_in_float32(groups):
    x = var("x", shape=(1, 8, 9, 9), dtype="float16")
    weight = RNG.standard_normal((12, 8 // groups, 3, 3)).astype(np.float16)
    data = RNG.standard_normal((1, 8, 9, 9)).astype(np.float16)
    body = nn.conv2d(x, const(weight), 2, (1, 1), groups=groups)
    got, kept = run(body, x, data)
    assert kept == {"float16"}
    wide = nn.conv2d(op.cast(x, "float32"), const(weight.astype(np.float32)), 2, (1, 1), groups=groups)
    expected, _ = run(op.cast(wide, "float16"), x, data)
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-12)])
@pytest.mark.parametrize("depth", [(), (3,)], ids=["planes", "volumes"])
def test_winograd_convolutions_of_other_types(dtype: str, tolerance: float, depth: tuple[int, ...]):
    """Convolutions of float16 are computed in float32, with weights transformed in it; those of float64 in float64."""
    data = RNG.standard_normal((1, 64, *depth, 28, 28)).astype(dtype)
    weight = (RNG.standard_normal((64, 64, *depth, 3, 3)) / 24).astype(dtype)
    x, layer = var("x", shape=data.shape, dtype=dtype), nn.conv3d if depth else nn.conv2d
    body = layer(x, const(weight), padding=(1,) * (2 + len(depth)))
    optimized = str(relay.optimize(IRModule({"main": Function((x,), body)}), "llvm -mcpu=znver4")["main"])
    assert "winograd" in optimized
    got, _ = run(body, x, data)
    exact = body.op.reference(data.astype(np.float64), weight.astype(np.float64))
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=tolerance * np.abs(exact).max())


@pytest.mark.parametrize(("most", "kept"), [(127, "int8"), (3000, "int16"), (1 << 20, "int32")])
@pytest.mark.parametrize("columns", [16, 50])
def test_integers_keep_their_narrowest_type_and_sums_are_exact(most, kept, columns):
    x = var("x", shape=(9, 70), dtype="int32")
    weight = RNG.integers(-most, most, (70, columns), endpoint=True).astype(np.int32)
    weight[0, 0] = most
    data = RNG.integers(-255, 255, (9, 70), endpoint=True).astype(np.int32)
    got, types = run(nn.batch_matmul(x, const(weight), transpose_b=False), x, data)
    np.testing.assert_array_equal(got, data @ weight)
    assert types == {kept}


def test_integer_convolutions_are_exact():
    x = var("x", shape=(1, 16, 12, 12), dtype="int32")
    weight = RNG.integers(-128, 127, (20, 16, 3, 3), endpoint=True).astype(np.int32)
    data = RNG.integers(-255, 255, (1, 16, 12, 12), endpoint=True).astype(np.int32)
    body = nn.conv2d(x, const(weight), padding=(1, 1))
    got, types = run(body, x, data)
    calls = [e for e in analysis.evaluation_order(Function((x,), body)) if isinstance(e, relay.Call)]
    np.testing.assert_array_equal(got, calls[0].op.reference(data, weight))
    assert types == {"int8"}


def _quantised(name: str, shape: tuple[int, ...], dtype: str, zero: int) -> tuple[Expr, Expr]:
    x = var(name, shape=shape, dtype=dtype)
    return x, op.subtract(op.cast(x, "int32"), const(np.int32(zero)))


def _uses_pairs(body: Expr, x: Expr) -> bool:
    optimized = relay.optimize(IRModule({"main": Function((x,), body)}), WITHOUT_BYTE_PRODUCTS)["main"]
    text = str(optimized)
    assert "packed" in text
    return "pairs=True" in text


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 255), ("int8", -128)])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(2, 6, 16), (9, 70, 50), (40, 768, 24), (40, 768, 64), (9, 7, 16)]
)
def test_quantised_products_take_two_steps_at_a_time_and_are_exact(dtype, zero, rows, depth, columns):
    x, centred = _quantised("x", (rows, depth), dtype, zero)
    weight = RNG.choice([-128, 127, 0], (depth, columns)).astype(np.int32)
    body = nn.batch_matmul(centred, const(weight), transpose_b=False)
    assert _uses_pairs(body, x)
    limits = np.iinfo(dtype)
    data = RNG.choice([limits.min, limits.max], (rows, depth)).astype(dtype)
    got, types = run(body, x, data, WITHOUT_BYTE_PRODUCTS)
    np.testing.assert_array_equal(got, (data.astype(np.int32) - zero) @ weight)
    assert types == {"int8"}


@pytest.mark.parametrize("channels", [6, 3])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1)])
def test_quantised_convolutions_take_two_channels_at_a_time_and_are_exact(padding, channels):
    x, centred = _quantised("x", (1, channels, 9, 9), "uint8", 7)
    weight = RNG.integers(-128, 127, (20, channels, 3, 3), endpoint=True).astype(np.int32)
    conv = nn.conv2d(centred, const(weight), padding=padding)
    assert _uses_pairs(conv, x)
    data = RNG.integers(0, 255, (1, channels, 9, 9), endpoint=True).astype(np.uint8)
    got, _ = run(conv, x, data, WITHOUT_BYTE_PRODUCTS)
    np.testing.assert_array_equal(got, conv.op.reference(data.astype(np.int32) - 7, weight))


@pytest.mark.parametrize("case", ["unknown range", "large zero", "large weights"])
def test_other_products_take_a_step_at_a_time(case):
    depth = 8
    x, centred = _quantised("x", (9, depth), "uint8", 40_000 if case == "large zero" else 3)
    if case == "unknown range":
        x = centred = var("x", shape=(9, depth), dtype="int32")
    weight = RNG.integers(-100, 100, (depth, 16)).astype(np.int32) * (1000 if case == "large weights" else 1)
    assert not _uses_pairs(nn.batch_matmul(centred, const(weight), transpose_b=False), x)
