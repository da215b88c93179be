"""Convolutions compiled with groups and last panels of any number of channels, in blocks of rows."""

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


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(1, 8, 22), (1, 8, 48), (1, 8, 5), (3, 8, 34), (2, 4, 4)])
@pytest.mark.parametrize("cores", [1, 3])
def test_all_panels_pass_over_blocks_of_rows(groups: int, inputs: int, outputs: int, cores: int):
    """Caches so small that the rows are divided into blocks, the last of which is shifted."""
    random = np.random.default_rng(outputs)
    data = random.standard_normal((1, 31, 29, groups * inputs)).astype("float32")
    weight = random.standard_normal((groups * outputs, inputs, 1, 1)).astype("float32")
    x = var("x", data.shape)
    y = nn.conv2d(x, const(weight), groups=groups, data_layout="NHWC")
    assert isinstance(y, Call)
    target = f"llvm -l1-bytes=2048 -l2-bytes=8192 -l3-bytes=16384 -num-cores={cores}"
    compiled = relay.build(IRModule({"main": Function((x,), nn.relu(y))}), target)
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=cores)
    runner.set_input("x", data)
    runner.run()
    expected = np.maximum(y.op.reference(data, weight), 0)  # type: ignore[union-attr]
    np.testing.assert_allclose(runner.get_output(0).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "width"), [(8, 4), (16, 2), (4, 4)])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2)])
def test_groups_of_less_than_a_vector_are_shuffled_out_of_vectors(
    groups: int, width: int, kernel: int, stride: int, dilation: int
):
    random = np.random.default_rng(groups)
    data = random.standard_normal((2, groups * width, 9, 19)).astype("float32")
    weight = random.standard_normal((groups * width, width, kernel, kernel)).astype("float32")
    x = var("x", data.shape)
    y = nn.conv2d(x, const(weight), stride, dilation * (kernel // 2), dilation, groups)
    compiled = relay.build(IRModule({"main": Function((x,), nn.relu(y))}), "llvm")
    assert "gather" not in compiled.module.get_source("raw-ll")
    assert "nn.conv2d_nhwc_packed" not in [name for node in compiled.graph.nodes for name in node.ops]
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=1)
    assert isinstance(y, Call)
    expected = np.maximum(y.op.reference(data, weight), 0)  # type: ignore[union-attr]
    np.testing.assert_allclose(runner(data)[0].numpy(), expected, rtol=1e-4, atol=1e-4)
