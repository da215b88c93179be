"""Gradient of ai.onnx.preview.training: gradients of a part of the model's own graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError, from_onnx
from relayc.relay.interpreter import evaluate

TRAINING = "ai.onnx.preview.training"


def _gradient(
    inputs: Sequence[str], outputs: Sequence[str], xs: Sequence[str], y: str, zs: Sequence[str] = ()
) -> NodeProto:
    free = {"zs": list(zs)} if zs else {}
    return helper.make_node("Gradient", inputs, outputs, domain=TRAINING, xs=list(xs), y=y, **free)


def _model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Sequence[int]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)])


def _run(model: ModelProto, *arrays: np.ndarray) -> list[np.ndarray]:
    module, _ = from_onnx(model)
    found = evaluate(module, arrays)
    return list(found) if isinstance(found, tuple) else [found]  # type: ignore[list-item]


def test_gradient_of_weights_that_are_constants() -> None:
    weight = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"]),  # folded when it is imported: y depends on w nevertheless
        helper.make_node("MatMul", ["x", "wt"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["y"], keepdims=0),
        _gradient(["w", "x"], ["dw", "dx"], ["w", "x"], "y"),
    ]
    x = np.array([[1, 2, 3], [-1, 0, 4]], np.float32)
    y, dw, dx = _run(_model(nodes, {"x": (2, 3)}, ["y", "dw", "dx"], {"w": weight}), x)
    np.testing.assert_allclose(y, (x @ weight.T).sum())
    np.testing.assert_allclose(dw, np.ones((2, 2), np.float32).T @ x)
    np.testing.assert_allclose(dx, np.ones((2, 2), np.float32) @ weight)


def test_gradient_by_an_intermediate_tensor_at_another_value() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "h"], ["squared"]),
        helper.make_node("Add", ["squared", "z"], ["y"]),
        _gradient(["other", "z"], ["dh"], ["h"], "y", zs=["z"]),
    ]
    x, w, z, other = (np.full(3, v, np.float32) for v in (2, 3, 5, 7))
    shapes = dict.fromkeys(("x", "w", "z", "other"), (3,))
    (dh,) = _run(_model(nodes, shapes, ["dh"]), x, w, z, other)
    np.testing.assert_allclose(dh, 2 * other)


def test_gradient_of_a_gradient() -> None:
    """o = sum(x**2 * w) * l: do/dx = 2 x w l, and d(sum do/dx)/dw = 2 x l."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["xx"]),
        helper.make_node("Mul", ["xx", "w"], ["weighted"]),
        helper.make_node("Mul", ["weighted", "l"], ["o"]),
        _gradient(["x", "w", "l"], ["dx", ""], ["x", "w"], "o", zs=["l"]),
        _gradient(["x", "w", "l"], ["dxx", "dxw"], ["x", "w"], "dx", zs=["l"]),
    ]
    x, w, scale = np.array([1, 2], np.float32), np.array([3, 5], np.float32), np.array([2, 2], np.float32)
    dx, dxx, dxw = _run(_model(nodes, dict.fromkeys("xwl", (2,)), ["dx", "dxx", "dxw"]), x, w, scale)
    np.testing.assert_allclose(dx, 2 * x * w * scale)
    np.testing.assert_allclose(dxx, 2 * w * scale)
    np.testing.assert_allclose(dxw, 2 * x * scale)


def test_a_branch_that_captures_an_intermediate_tensor_keeps_it() -> None:
    """The condition does not depend on x; its branches capture h, which does."""
    branch = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["r"])], "b", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
    )
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch, else_branch=branch),
        _gradient(["x"], ["dx"], ["x"], "y"),
    ]
    model = _model(nodes, {"x": (2,)}, ["dx"], {"zero": np.array(0, np.float32)})
    with pytest.raises(UnsupportedOperatorError, match=r"Gradient.*no gradient rule"):
        from_onnx(model)


def test_errors_name_the_node() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(OnnxImportError, match=r"'dx'.*names 'nothing', which no node in front of it makes"):
        from_onnx(_model([relu, _gradient(["x"], ["dx"], ["x"], "nothing")], {"x": (2,)}, ["dx"]))
    with pytest.raises(OnnxImportError, match="1 inputs"):
        from_onnx(_model([relu, _gradient(["x"], ["dx"], ["x"], "y", zs=["q"])], {"x": (2,)}, ["dx"]))
    size = helper.make_node("Size", ["x"], ["y"])
    with pytest.raises(UnsupportedOperatorError, match=r"int64.*must be a float tensor"):
        from_onnx(_model([size, _gradient(["x"], ["dx"], ["x"], "y")], {"x": (2,)}, ["dx"]))


def test_the_order_of_derivatives_is_bounded() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y0"])]
    nodes += [_gradient(["x"], [f"y{k + 1}"], ["x"], f"y{k}") for k in range(40)]
    with pytest.raises(OnnxImportError, match="a derivative of order 7"):
        from_onnx(_model(nodes, {"x": (2,)}, ["y40"]))
