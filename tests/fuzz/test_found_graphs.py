"""Regression tests: small models, found by random graphs, that were miscompiled or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from relayc.frontends.onnx.backend import RelayBackend


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


def result_of(
    node: NodeProto, inputs: dict[str, Any], constants: dict[str, Any] | None = None, opset: int = 21
) -> np.ndarray[Any, Any]:
    """The output of a one-node model for inputs of static shapes."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    graph = helper.make_graph(
        [node],
        "found",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in inputs.items()],
        [ValueInfoProto(name=node.output[0])],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return RelayBackend.prepare(model).run(inputs)[0]


def test_tile_of_an_empty_tensor() -> None:
    x, times = np.zeros((0, 3), np.float32), np.array([2, 2])
    node = helper.make_node("Tile", ["x", "times"], ["y"])
    (y,) = RelayBackend.prepare(model_of(node, {"x": x}, {"times": times}, x.shape)).run([x])
    assert y.shape == (0, 6) and y.dtype == np.float32


def test_log_sum_exp_of_symbolic_sizes() -> None:
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


def test_backward_slice_that_begins_before_the_first_element() -> None:
    x = np.arange(4, dtype=np.float32)
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    wanted = {"starts": np.array([-7]), "ends": np.array([-(2**31)]), "axes": np.array([0]), "steps": np.array([-1])}
    assert result_of(node, {"x": x}, wanted).tolist() == [0.0]  # a start is kept within the axis; Python has []


@pytest.mark.parametrize(("shape", "axis"), [((1, 2, 1), 2), ((40, 1), 1), ((3, 3, 1, 1), 3), ((2, 1, 33), 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_of_one_element_is_exact(
    shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    assert (result_of(helper.make_node("Softmax", ["x"], ["y"], axis=axis), {"x": x}) == 1).all()
    node = helper.make_node("LogSoftmax", ["x"], ["y"], axis=axis)
    assert not result_of(node, {"x": x}).any()
    sizes = [f"size{i}" for i in range(x.ndim)]
    assert not RelayBackend.prepare(model_of(node, {"x": x}, {}, sizes)).run([x])[0].any()


@pytest.mark.parametrize(("operator", "alpha"), [("LeakyRelu", 0.01), ("HardSigmoid", 0.2)])
def test_defaults_of_float_attributes_are_float32(operator: str, alpha: float) -> None:
    x = np.array([-0.75, -0.125, 0.5])
    passed = result_of(helper.make_node(operator, ["x"], ["y"], alpha=alpha), {"x": x})
    np.testing.assert_array_equal(result_of(helper.make_node(operator, ["x"], ["y"]), {"x": x}), passed)


def test_dynamic_input_that_is_the_output() -> None:
    x = np.arange(5, dtype=np.float32)
    node = helper.make_node("Dropout", ["x"], ["y"])
    model = RelayBackend.prepare(model_of(node, {"x": x}, {}, ["batch"]))
    for size in (5, 1, 3):
        np.testing.assert_array_equal(model.run([x[:size]])[0], x[:size])


def test_computed_empty_shape() -> None:
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"])
    y = result_of(node, {"shape": np.zeros(0, np.int64)})
    assert y.shape == () and y == 0.0


def test_lrn_window_larger_than_the_channels() -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 2)).astype(np.float32)
    y = result_of(helper.make_node("LRN", ["x"], ["y"], size=2**31 - 1, alpha=2.0**31, bias=1.0), {"x": x})
    np.testing.assert_allclose(y, x / (1 + np.square(x).sum(1, keepdims=True)) ** 0.75, rtol=1e-4)


def test_windows_larger_than_symbolic_dimensions() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1)
    late = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1)
    x = np.random.default_rng(0).uniform(-9, -1, (2, 3, 20)).astype(np.float32)
    for pool in (node, late):
        model = RelayBackend.prepare(model_of(pool, {"x": x}, {}, [2, 3, "length"]))
        for size in range(1, 20):
            part = np.ascontiguousarray(x[:, :, :size])
            np.testing.assert_array_equal(model.run([part])[0], result_of(pool, {"x": part}))


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (3, 0)])
@pytest.mark.parametrize("columns", [(), (5,), (40,)])
def test_products_of_empty_tensors(shape: tuple[int, ...], columns: tuple[int, ...]) -> None:
    x, w = np.zeros(shape, np.float32), np.ones((shape[-1], *columns), np.float32)
    for constants in ({"w": w}, None):
        inputs = {"x": x} if constants else {"x": x, "w": w}
        y = result_of(helper.make_node("MatMul", ["x", "w"], ["y"]), inputs, constants)
        np.testing.assert_array_equal(y, x @ w)


def test_lrn_with_something_behind_it() -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 5, 3)).astype(np.float32)
    nodes = [helper.make_node("LRN", ["x"], ["l"], size=3), helper.make_node("Neg", ["l"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "found",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [ValueInfoProto(name="y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (y,) = RelayBackend.prepare(model).run([x])
    np.testing.assert_allclose(y, -result_of(helper.make_node("LRN", ["x"], ["y"], size=3), {"x": x}), rtol=1e-6)


def test_dynamic_quantisation_of_zeros() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["", "y", "z"])
    x = np.zeros((2, 3), np.float32)
    graph = helper.make_graph(
        [node],
        "found",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [ValueInfoProto(name="y"), ValueInfoProto(name="z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    scale, point = RelayBackend.prepare(model).run([x])
    assert scale == 1.0 and point == 0


@pytest.mark.parametrize(("name", "of_nothing"), [("ReduceSumSquare", 0.0), ("ReduceL1", 0.0), ("ReduceMean", np.nan)])
def test_reductions_of_empty_tensors_along_two_axes(name: str, of_nothing: float) -> None:
    node, x = helper.make_node(name, ["x", "axes"], ["y"]), np.zeros((0, 1), np.float32)
    np.testing.assert_array_equal(result_of(node, {"x": x}, {"axes": np.array([-2, 1])}), [[of_nothing]])
