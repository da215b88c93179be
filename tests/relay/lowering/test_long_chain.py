"""Deep graphs compile and run: no step of the build recurses along them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.te.ir import IRModule


@pytest.mark.slow
def test_a_chain_of_ten_thousand_operators_runs():
    x = relay.var("x", (1, 64))
    y: relay.Expr = x
    for _ in range(5000):
        y = relay.nn.relu(relay.op.add(y, x))
    lib = relay.build(IRModule({"main": relay.Function((x,), y)}), target="llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    data = np.linspace(-1e-3, 1e-3, 64, dtype=np.float32).reshape(1, 64)
    expected = data
    for _ in range(5000):
        expected = np.maximum(expected + data, 0)
    module.set_input("x", data)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), expected)


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "c"])
def test_a_chain_that_names_its_values_three_times_is_one_small_kernel(target: str):
    """Each link trebles the formula of the fused kernel if it is expanded: 3**24 nodes."""
    x, slopes = relay.var("x", (2, 3, 9, 11)), np.array([0.5, -0.25, 0.75], np.float32)
    y: relay.Expr = relay.nn.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for _ in range(12):
        y = relay.nn.elu(relay.nn.prelu(y, relay.const(slopes), axis=1), 1.0)
    lib = relay.build(IRModule({"main": relay.Function((x,), y)}), target=target)
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    data = np.random.default_rng(0).normal(size=(2, 3, 9, 11)).astype(np.float32)
    expected = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    for _ in range(12):
        expected = np.where(expected < 0, slopes.reshape(3, 1, 1) * expected, expected)
        expected = np.where(expected > 0, expected, np.expm1(expected))
    module.set_input("x", data)
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), expected, rtol=1e-5, atol=1e-6)
