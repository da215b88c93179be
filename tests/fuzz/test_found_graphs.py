"""Small models that random graphs found to be compiled wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from frontends.onnx.backend import RelayBackend


def model_of(node: NodeProto, inputs: dict[str, Any], constants: dict[str, Any], shape: Sequence[Any]) -> ModelProto:
    """A model of one node; `shape` declares its only input."""
    ((name, array),) = inputs.items()
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    graph = helper.make_graph(
        [node],
        "found",
        [helper.make_tensor_value_info(name, kind, shape)],
        [helper.make_tensor_value_info(node.output[0], kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_tile_of_nothing() -> None:
    x, times = np.zeros((0, 3), np.float32), np.array([2, 2])
    node = helper.make_node("Tile", ["x", "times"], ["y"])
    (y,) = RelayBackend.prepare(model_of(node, {"x": x}, {"times": times}, x.shape)).run([x])
    assert y.shape == (0, 6) and y.dtype == np.float32


def test_log_sum_exp_of_open_sizes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    node = helper.make_node("ReduceLogSumExp", ["x", "axes"], ["y"])
    (y,) = RelayBackend.prepare(model_of(node, {"x": x}, {"axes": np.array([0])}, ["batch", "length"])).run([x])
    np.testing.assert_allclose(y, np.log(np.exp(x).sum(0, keepdims=True)), rtol=1e-5)


def test_output_whose_shape_is_known_only_after_it_is_computed() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Reshape", ["r", "wanted"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "late",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("wanted", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = RelayBackend.prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    )
    for rows, wanted in ((3, [2, 6]), (5, [-1, 2]), (3, [12, 1])):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        (y,) = model.run([x, np.array(wanted)])
        np.testing.assert_array_equal(y, np.maximum(x, 0).reshape(wanted))
