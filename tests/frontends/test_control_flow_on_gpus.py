"""Loops and sequences on a GPU: appended, stacked, split and concatenated tensors stay on the device."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from relayc import relay
from relayc.backend.runtime import graph_executor
from relayc.frontends.onnx import from_onnx

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, shape=None, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def sequence(name):
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def run(cuda_device, nodes, inputs, outputs, arrays):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    arch = "sm_" + cuda_device.compute_version.replace(".", "")
    lib = relay.build(from_onnx(model)[0], target=f"cuda -arch={arch}")
    module = graph_executor.GraphModule(lib["default"](cuda_device))
    return [[x.numpy() for x in y] if isinstance(y, list) else y.numpy() for y in module(*arrays)]


def test_a_loop_that_appends_and_stacks(cuda_device):
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Gather", ["x", "i"], ["row"]),
        helper.make_node("Add", ["total", "row"], ["next"]),
        helper.make_node("Neg", ["next"], ["seen"]),
        helper.make_node("SequenceInsert", ["list", "next"], ["longer"]),
    ]
    body = helper.make_graph(
        nodes, "body", [info("i", [], INT64), info("go", [], BOOL), info("total"), sequence("list")],
        [info("on", [], BOOL), info("next"), sequence("longer"), info("seen")],
    )  # fmt: skip
    around = [
        helper.make_node("SequenceEmpty", [], ["empty"]),
        helper.make_node("Loop", ["trips", "", "start", "empty"], ["end", "all", "stack"], body=body, name="loop"),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=1, new_axis=1),
    ]
    x, start = np.arange(15, dtype=np.float32).reshape(5, 3), np.ones(3, np.float32)
    end, every, stack, y = run(
        cuda_device, around, [info("trips", [], INT64), info("start", [3]), info("x", ["t", 3])],
        [info("end"), sequence("all"), info("stack"), info("y")], [np.array(4), start, x],
    )  # fmt: skip
    sums = start + np.cumsum(x[:4], 0)
    np.testing.assert_array_equal(end, sums[-1])
    np.testing.assert_array_equal(np.stack(every), sums)
    np.testing.assert_array_equal(stack, -sums)
    np.testing.assert_array_equal(y, sums.T)


def test_parts_at_computed_places(cuda_device):
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "at"], ["part"]),
        helper.make_node("Exp", ["part"], ["y"]),
        helper.make_node("ConcatFromSequence", ["parts"], ["z"], axis=1),
    ]
    x = np.random.default_rng(0).standard_normal((2, 6, 3), dtype=np.float32)
    y, z = run(
        cuda_device, nodes, [info("x", [2, "n", 3]), info("sizes", ["k"], INT64), info("at", [], INT64)],
        [info("y"), info("z")], [x, np.array([1, 3, 2]), np.array(1)],
    )  # fmt: skip
    np.testing.assert_allclose(y, np.exp(x[:, 1:4]), rtol=1e-5)
    np.testing.assert_array_equal(z, x)
