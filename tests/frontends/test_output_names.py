"""Outputs of a model that are its inputs, or one value, have their own names and arrays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import compile_onnx
from relayc.runtime import device, graph_executor, load_model

X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
RELU = np.maximum(X, 0)
node = helper.make_node
CASES = {
    "an input": ([node("Identity", ["x"], ["y"])], {"y": X}),
    "an input twice": ([node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])], {"y": X, "z": X}),
    "equal nodes": ([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["z"])], {"y": RELU, "z": RELU}),
    "a value twice": ([node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])], {"y": RELU, "z": RELU}),
    "a constant twice": (
        [node("Constant", [], ["c"], value=numpy_helper.from_array(X)), node("Identity", ["c"], ["y"]),
         node("Identity", ["c"], ["z"]), node("Relu", ["x"], ["r"])], {"r": RELU, "y": X, "z": X},
    ),
}  # fmt: skip


@pytest.mark.parametrize("rows", [2, "n"])
@pytest.mark.parametrize("case", CASES)
def test_every_output_has_its_name(case, rows, tmp_path):
    nodes, expected = CASES[case]

    def value(name: str, rows: int | str | None) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 3])

    graph = helper.make_graph(nodes, "g", [value("x", rows)], [value(name, None) for name in expected])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compile_onnx(model).save(tmp_path / "m.relayc")
    executor = graph_executor.GraphModule(load_model(tmp_path / "m.relayc")["default"](device("cpu")))
    executor.run(x=X)
    assert list(executor.get_output_info()[0]) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(executor.get_output(name).numpy(), values)
