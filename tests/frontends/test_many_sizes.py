"""Tensors joined of many parts whose sizes are known at run time: what comes after counts in one size."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import relay
from backend.runtime import device, graph_executor
from frontends.onnx import from_onnx

PARTS = 24


def model():
    names = [f"x{i}" for i in range(PARTS)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"n{i}"]) for i, name in enumerate(names)]
    nodes = [
        helper.make_node("Concat", names, ["scores"], axis=0),
        helper.make_node("Neg", names[:1], ["first"]),
        helper.make_node("Concat", ["first", *names[1:]], ["others"], axis=0),
        helper.make_node("Add", ["scores", "others"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["y"], axis=0),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["total"])]
    graph = helper.make_graph(nodes, "parts", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_what_comes_after_a_join_of_many_parts_counts_in_one_size():
    lib = relay.build(from_onnx(model())[0])
    counts = {node.ops[-1]: len(node.sizes) for node in lib.graph.nodes}
    assert counts["nn.softmax"] == 1
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    random = np.random.default_rng(0)
    for most in (4, 0, 9):
        data = [random.standard_normal(random.integers(0, most + 1)).astype(np.float32) for _ in range(PARTS)]
        total = np.concatenate(data) + np.concatenate([-data[0], *data[1:]])
        raised = np.exp(total - total.max(initial=0))
        np.testing.assert_allclose(executor(*data)[0].numpy(), raised / raised.sum(), rtol=1e-5)
