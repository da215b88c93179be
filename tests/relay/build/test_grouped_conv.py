"""Grouped convolutions compiled: groups of any number of channels, with the epilogue fused into the tiles."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from backend.runtime import device, graph_executor
from relay import Call, Function, IRModule, const, op, var
from relay.op import nn


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (3, 5), (4, 8), (3, 13), (2, 34), (5, 48)])
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_any_width(groups: int, inputs: int, outputs: int, kernel: int):
    random = np.random.default_rng(groups * inputs * outputs)
    channels = groups * outputs
    data = random.standard_normal((2, groups * inputs, 5, 7)).astype("float32")
    weight = random.standard_normal((channels, inputs, kernel, kernel)).astype("float32")
    bias = random.standard_normal((channels, 1, 1)).astype("float32")
    residual = random.standard_normal((2, channels, 5, 7)).astype("float32")

    x, shortcut = var("x", data.shape), var("shortcut", residual.shape)
    y = nn.conv2d(x, const(weight), groups=groups, padding=kernel // 2)
    assert isinstance(y, Call)
    expected = np.maximum(y.op.reference(data, weight) + bias + residual, 0)  # type: ignore[union-attr]
    function = Function((x, shortcut), nn.relu(op.add(op.add(y, const(bias)), shortcut)))
    compiled = relay.build(IRModule({"main": function}), "llvm")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=1)
    runner.set_input("x", data)
    runner.set_input("shortcut", residual)
    runner.run()
    np.testing.assert_allclose(runner.get_output(0).numpy(), expected, rtol=1e-4, atol=1e-4)
