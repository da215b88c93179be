"""Concatenation of many parts of symbolic sizes: later index arithmetic uses one size variable."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

PARTS = 24


def floats(name: str, *shape: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def branch(operator: str) -> GraphProto:
    """A body that applies `operator` to what was joined outside."""
    return helper.make_graph([helper.make_node(operator, ["sum"], ["z"])], operator, [], [floats("z", "other")])


def model(chosen: bool) -> ModelProto:
    """The sum of two concatenations of equal sizes, and its softmax; or an If between two functions of the sum."""
    names = [f"x{i}" for i in range(PARTS)]
    nodes = [
        helper.make_node("Concat", names, ["scores"], axis=0),
        helper.make_node("Neg", names[:1], ["first"]),
        helper.make_node("Concat", ["first", *names[1:]], ["others"], axis=0),
        helper.make_node("Add", ["scores", "others"], ["sum"]),
    ]
    if chosen:
        nodes += [
            helper.make_node("ReduceSum", ["sum"], ["all"], keepdims=0),
            helper.make_node("Cast", ["all"], ["any"], to=TensorProto.BOOL),
            helper.make_node("If", ["any"], ["y"], then_branch=branch("Exp"), else_branch=branch("Relu")),
        ]
    else:
        nodes.append(helper.make_node("Softmax", ["sum"], ["y"], axis=0))
    inputs = [floats(name, f"n{i}") for i, name in enumerate(names)]
    graph = helper.make_graph(nodes, "parts", inputs, [floats("y", "total")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("chosen", [False, True])
def test_concat_of_many_symbolic_sizes_gets_one_size_variable(chosen: bool):
    lib = relay.build(from_onnx(model(chosen))[0])
    sizes = {name: len(node.sizes) for node in lib.graph.nodes for name in node.ops}
    assert sizes["sum" if chosen else "nn.softmax"] == 1
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    random = np.random.default_rng(0)
    for most in (4, 0, 9):
        data = [random.standard_normal(random.integers(0, most + 1)).astype(np.float32) for _ in range(PARTS)]
        total = np.concatenate(data) + np.concatenate([-data[0], *data[1:]])
        raised = np.exp(total - (0 if chosen else total.max(initial=0)))
        expected = raised if chosen else raised / raised.sum()
        np.testing.assert_allclose(executor(*data)[0].numpy(), expected, rtol=1e-5)


def test_neighbours_of_tokens_are_added_to_the_tokens():
    """As in MobileBERT's embedding: sequences without their first token, padded, are as long as those with it."""
    weights = np.random.default_rng(1).standard_normal((16, 8), dtype=np.float32)
    passed = {"first": [1], "end": [2**31], "axis": [1], "border": [0, 0, 0, 0, 1, 0]}
    nodes = [
        helper.make_node("Slice", ["x", "first", "end", "axis"], ["cut"]),
        helper.make_node("Pad", ["cut", "border"], ["next"]),
        helper.make_node("Concat", ["next", "x"], ["both"], axis=2),
        helper.make_node("MatMul", ["both", "weights"], ["embedded"]),
        helper.make_node("Add", ["embedded", "x"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 8])]
    constants = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in passed.items()]
    constants.append(numpy_helper.from_array(weights, "weights"))
    graph = helper.make_graph(nodes, "neighbours", inputs, [floats("y", "batch", "length", "8")], constants)
    lib = relay.build(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))[0])
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for batch, length in ((1, 1), (2, 7), (1, 40)):
        x = np.random.default_rng(length).standard_normal((batch, length, 8), dtype=np.float32)
        moved = np.concatenate([x[:, 1:], np.zeros((batch, 1, 8), np.float32)], axis=1)
        expected = np.concatenate([moved, x], axis=2) @ weights + x
        np.testing.assert_allclose(executor(x)[0].numpy(), expected, rtol=1e-4, atol=1e-5)
