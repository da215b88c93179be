"""PackWeights and products of bfloat16: in pairs where the processor multiplies them, and exact sums in float32."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.runtime import device, graph_executor
from relayc.relay import Expr, Function, const, op, var
from relayc.relay.op import nn
from relayc.te.ir import IRModule, PassContext

RNG = np.random.default_rng(8)
ZEN_4 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4"
CASCADE_LAKE = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=cascadelake"


def bfloats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(ml_dtypes.bfloat16)


def run(body: Expr, x: relay.Var, data: np.ndarray) -> np.ndarray:
    lib = relay.build(IRModule({"main": Function((x,), body)}), "llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu")))
    module.set_input("x", data)
    module.run()
    return module.get_output(0).numpy()


def optimized(body: Expr, x: relay.Var, target: str) -> str:
    return str(relay.optimize(IRModule({"main": Function((x,), body)}), target)["main"])


def close(got: np.ndarray, exact: np.ndarray) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("shape", [(1, 96), (7, 33), (2, 3, 64), (130, 200)])
@pytest.mark.parametrize("units", [5, 16, 50])
def test_products_of_rows(shape, units):
    x, weight, data = var("x", shape=shape, dtype="bfloat16"), bfloats(units, shape[-1]), bfloats(*shape)
    got = run(nn.dense(x, const(weight), out_dtype="float32"), x, data)
    close(got, data.astype(np.float64) @ weight.astype(np.float64).T)


@pytest.mark.parametrize(
    ("channels", "window"), [(3, {"strides": (2, 2), "padding": (1, 1)}), (16, {"padding": (1, 1)}), (7, {}),
                             (8, {"dilation": (2, 1)})],
)  # fmt: skip
def test_convolutions(channels, window):
    x, data = var("x", shape=(2, 11, 9, channels), dtype="bfloat16"), bfloats(2, 11, 9, channels)
    weight = bfloats(20, channels, 3, 3)
    body = nn.conv2d(x, const(weight), data_layout="NHWC", kernel_layout="OIHW", out_dtype="float32", **window)
    close(run(body, x, data), body.op.reference(data, weight).astype(np.float64))


@pytest.mark.parametrize("channels", [7, 64])
def test_a_pointwise_weight_of_layers_with_and_without_strides(channels):
    """One layer is a product of rows, the others are convolutions: they read the weight in panels of their own."""
    x, data = var("x", shape=(1, 12, 10, channels), dtype="bfloat16"), bfloats(1, 12, 10, channels)
    weight = const(bfloats(32, channels, 1, 1))
    layers = [
        nn.conv2d(x, weight, data_layout="NHWC", kernel_layout="OIHW", out_dtype="float32", **window)
        for window in ({}, {"strides": (2, 2)}, {"padding": (1, 1)})
    ]
    lib = relay.build(IRModule({"main": Function((x,), relay.Tuple(tuple(layers)))}), "llvm")
    results = graph_executor.GraphModule(lib["default"](device("cpu"))).infer({"x": data})
    for got, layer in zip(results, layers, strict=True):
        close(got, layer.op.reference(data, weight.data).astype(np.float64))


@pytest.mark.parametrize("factor", [2.0, np.arange(1, 6)], ids=["scalar", "units"])
def test_a_weight_multiplied_by_a_factor(factor):
    """Its values are not in memory before they are packed."""
    x, weight, data = var("x", shape=(7, 33), dtype="bfloat16"), bfloats(5, 33), bfloats(7, 33)
    factor = np.asarray(factor, ml_dtypes.bfloat16)
    got = run(nn.dense(x, const(weight)) * const(factor), x, data).astype(np.float64)
    exact = (data.astype(np.float64) @ weight.astype(np.float64).T) * factor.astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=2e-2, atol=2e-2 * np.abs(exact).max())


def test_rows_that_are_known_at_run_time():
    x, weight = var("x", shape=(te.size_var("n"), 48), dtype="bfloat16"), bfloats(40, 48)
    lib = relay.build(IRModule({"main": Function((x,), nn.dense(x, const(weight), out_dtype="float32"))}), "llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu")))
    for rows in (1, 2, 5, 13, 64, 129):
        data = bfloats(rows, 48)
        close(module.infer({"x": data})[0], data.astype(np.float64) @ weight.astype(np.float64).T)


def test_pairs_are_multiplied_only_where_an_instruction_does():
    x = var("x", shape=(64, 64), dtype="bfloat16")
    body = nn.dense(x, const(bfloats(64, 64)), out_dtype="float32")
    assert "nn.dense_dot2_bfloat16" in optimized(body, x, ZEN_4)
    assert "bfloat16" in optimized(body, x, CASCADE_LAKE) and "dot2" not in optimized(body, x, CASCADE_LAKE)


def test_only_operands_of_products_with_weights_are_rounded():
    """Sums, activations, norms and residual additions stay in float32."""
    x = var("x", shape=(64, 64))
    hidden = nn.layer_norm(op.add(x, nn.relu(nn.dense(x, const(bfloats(64, 64).astype("float32"))))), *[
        const(np.ones(64, "float32"))] * 2)  # fmt: skip
    with PassContext(config={"relay.ToMixedPrecision.dtype": "bfloat16"}):
        text = optimized(nn.dense(hidden, const(bfloats(9, 64).astype("float32"))), x, ZEN_4)
    assert text.count("nn.dense_dot2_bfloat16") == 2
    for name in ("nn.relu", "add", "nn.layer_norm"):
        assert re.search(rf"= {name}\(.* ty=Tensor\[\(64, 64\), float32\]", text), text
