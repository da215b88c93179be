"""The ONNX backend interface: when models are compiled, how inputs are passed, unsupported models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import relayc.frontends.onnx.backend as backend
from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class CountingBackend(RelayBackend):
    """Counts compilations."""

    count = 0

    @classmethod
    def compile_module(cls, mod: Any, device: str) -> Any:
        cls.count += 1
        return super().compile_module(mod, device)


def info(name: str, shape: list[Any], elem_type: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(nodes: list[NodeProto], inputs: list[Any], weights: dict[str, np.ndarray] | None = None) -> ModelProto:
    initializers = [numpy_helper.from_array(v, n) for n, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", [], 0)], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_a_static_model_is_compiled_when_it_is_prepared() -> None:
    CountingBackend.count = 0
    prepared = CountingBackend.prepare(model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2, 3])]))
    assert CountingBackend.count == 1
    for sign in (1, -1):
        (y,) = prepared.run([sign * X])
        np.testing.assert_array_equal(y, np.maximum(sign * X, 0))
    assert CountingBackend.count == 1


def test_symbolic_shapes_are_compiled_once() -> None:
    CountingBackend.count = 0
    prepared = CountingBackend.prepare(model([helper.make_node("Neg", ["x"], ["y"])], [info("x", ["n", 3])]))
    for rows in (1, 2, 1, 2):
        np.testing.assert_array_equal(prepared.run([X[:rows]])[0], -X[:rows])
    assert CountingBackend.count == 1


def test_one_model_runs_sizes_that_broadcast() -> None:
    CountingBackend.count = 0
    inputs = [info("x", ["n", 3]), info("z", ["m", 3])]
    prepared = CountingBackend.prepare(model([helper.make_node("Add", ["x", "z"], ["y"])], inputs))
    for rows in (2, 1, 2):
        np.testing.assert_array_equal(prepared.run([X, X[:rows]])[0], X + X[:rows])
    assert CountingBackend.count == 1


def test_an_input_that_decides_a_shape_is_read_when_running() -> None:
    CountingBackend.count = 0
    inputs = [info("x", [2, 3]), info("s", [2], INT64)]
    prepared = CountingBackend.prepare(model([helper.make_node("Reshape", ["x", "s"], ["y"])], inputs))
    for shape in ([3, 2], [6, 1], [-1, 2], [0, 3]):
        (y,) = prepared.run([X, np.array(shape)])
        np.testing.assert_array_equal(y, X.reshape([d or X.shape[axis] for axis, d in enumerate(shape)]))
    assert CountingBackend.count == 1


def test_inputs_by_name_and_weights_listed_as_inputs() -> None:
    weight = np.full(3, 2, np.float32)
    inputs = [info("x", [2, 3]), info("w", [3])]
    prepared = backend.prepare(model([helper.make_node("Mul", ["x", "w"], ["y"])], inputs, {"w": weight}))
    for passed in ([X], {"x": X}, [X, weight]):
        outputs = prepared.run(passed)
        np.testing.assert_array_equal(outputs[0], X * 2)
        assert outputs["y"] is outputs[0]
    with pytest.raises(OnnxImportError, match="3 inputs given; the model takes 2: x, w"):
        prepared.run([X, X, X])


def test_sizes_of_one_name_may_differ(caplog: pytest.LogCaptureFixture) -> None:
    """A name that two inputs contradict is open for a third, as in onnxruntime."""
    inputs = [info("x", ["n", 3]), info("z", ["n", 3]), info("w", ["n", 3])]
    proto = model([helper.make_node("Concat", ["x", "z", "w"], ["y"], axis=0)], inputs)
    prepared = backend.prepare(proto)
    for rows in (2, 1, 3):
        others = np.ones((rows, 3), np.float32)
        np.testing.assert_array_equal(prepared.run([X, others, X])[0], np.concatenate([X, others, X]))
    assert "the shapes given by shape= differ in the dimension 'n'" in caplog.text
    module, _ = from_onnx(proto, shape={"x": (2, 3), "z": (1, 3)})
    assert [str(value.ty) for value in module["main"].params] == [
        "Tensor[(2, 3), float32]", "Tensor[(1, 3), float32]", "Tensor[(n, 3), float32]"
    ]  # fmt: skip
    with pytest.raises(OnnxImportError, match="shape= makes the dimension 'n' both 2 and 1"):
        from_onnx(proto, shape={"n": 2, "z": (1, 3)})


def test_run_model_and_run_node() -> None:
    proto = model([helper.make_node("Abs", ["x"], ["y"])], [info("x", [2, 3])])
    np.testing.assert_array_equal(backend.run_model(proto, [-X])[0], X)
    node = helper.make_node("Add", ["a", "a"], ["y"])
    np.testing.assert_array_equal(backend.run_node(node, [X, X])[0], X + X)
    softmax = helper.make_node("Softmax", ["x"], ["y"])
    data = np.zeros((1, 2, 2), np.float32)
    assert backend.run_node(softmax, [data], opset_version=11)[0][0, 0, 0] == 0.25
    assert backend.run_node(softmax, [data], opset_version=13)[0][0, 0, 0] == 0.5
    with pytest.raises(OnnxImportError, match="1 arrays for the 2 inputs of Add"):
        backend.run_node(node, [X])


def test_devices() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0")
    assert not backend.supports_device("TPU")


def test_what_is_not_supported_is_said_when_preparing() -> None:
    proto = model([helper.make_node("NoSuchOperator", ["x"], ["y"])], [info("x", [1])])
    with pytest.raises(UnsupportedOperatorError) as caught:
        backend.prepare(proto)
    assert caught.value.operators == ("NoSuchOperator",)
