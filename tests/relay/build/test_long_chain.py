"""Deep graphs compile and run: nothing in the build recurses along them."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from backend.runtime import device, graph_executor
from te.ir import IRModule


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
