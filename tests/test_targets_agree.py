"""One small model on every kind of target agrees with the operators' numpy references."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.te.ir import IRModule

TARGETS = ["llvm", pytest.param("c -opt-level=1", marks=pytest.mark.skipif(not shutil.which("cc"), reason="needs cc")),
           "interp"]  # fmt: skip


def small_model():
    random = np.random.default_rng(0)
    x = relay.var("x", (1, 3, 9, 9))
    weight = relay.const(random.standard_normal((8, 3, 3, 3), dtype=np.float32))
    y = relay.nn.relu(relay.nn.conv2d(x, weight, padding=(1, 1, 1, 1)))
    y = relay.nn.softmax(relay.nn.global_avg_pool2d(y), axis=1)
    return IRModule({"main": relay.Function((x,), y)}), random.standard_normal((1, 3, 9, 9), dtype=np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_small_model(target):
    module, x = small_model()
    expected = relay.create_executor("debug", module).evaluate()(x)
    compiled = relay.build(module, target=target)
    executor = graph_executor.GraphModule(compiled["default"](device(target.split()[0])))
    executor.set_input("x", x)
    executor.run()
    np.testing.assert_allclose(executor.get_output(0).numpy(), np.asarray(expected), rtol=1e-5, atol=1e-6)
