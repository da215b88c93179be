"""EmbeddingBag, which torch exports as a loop, becomes one operator with the same results."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

RNG = np.random.default_rng(5)
TABLE = RNG.standard_normal((20, 70), dtype=np.float32)


def model(kind="ReduceSum", weighted=False):
    """y[i] = reduction of TABLE[positions[offsets[i]:offsets[i + 1]]], times factors where it is weighted."""
    constants = {"zero": np.array([0]), "one": np.array([1]), "far": np.array([1 << 62]), "first": np.array(0),
                 "yes": np.array(True)}  # fmt: skip
    body = [
        helper.make_node("Gather", ["bounds", "i"], ["start"], axis=0),
        helper.make_node("Gather", ["ends", "i"], ["end"], axis=0),
        helper.make_node("Unsqueeze", ["start", "zero"], ["starts"]),
        helper.make_node("Unsqueeze", ["end", "zero"], ["stops"]),
        helper.make_node("Slice", ["positions", "starts", "stops", "zero"], ["cut"]),
        helper.make_node("Gather", ["table", "cut"], ["rows"], axis=0),
    ]
    rows = "rows"
    if weighted:
        body += [
            helper.make_node("Slice", ["factors", "starts", "stops", "zero"], ["few"]),
            helper.make_node("Unsqueeze", ["few", "one"], ["column"]),
            helper.make_node("Mul", ["rows", "column"], ["scaled"]),
        ]
        rows = "scaled"
    inputs = [rows, "zero"] if kind == "ReduceSum" else [rows]
    axes = {} if kind == "ReduceSum" else {"axes": [0]}
    body += [
        helper.make_node(kind, inputs, ["reduced"], keepdims=0, **axes),
        helper.make_node("Cast", ["yes"], ["on"], to=TensorProto.BOOL),
    ]
    made = [helper.make_empty_tensor_value_info(name) for name in ("on", "reduced")]
    loop = helper.make_graph(
        body, "bag", [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])], made
    )
    nodes = [
        helper.make_node("Shape", ["positions"], ["length"]),
        helper.make_node("Concat", ["offsets", "length"], ["bounds"], axis=0),
        helper.make_node("Slice", ["bounds", "one", "far", "zero"], ["ends"]),
        helper.make_node("Shape", ["ends"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["count"], axis=0),
        helper.make_node("Loop", ["count", "yes"], ["y"], body=loop),
    ]
    passed = [helper.make_tensor_value_info("positions", 7, ["n"]), helper.make_tensor_value_info("offsets", 7, ["m"])]
    if weighted:
        passed.append(helper.make_tensor_value_info("factors", 1, ["n"]))
    tensors = [numpy_helper.from_array(v, name) for name, v in {**constants, "table": TABLE}.items()]
    graph = helper.make_graph(nodes, "bags", passed, [helper.make_tensor_value_info("y", 1, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def run(mod, inputs):
    executor = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))
    for name in mod.attrs["input_names"]:
        executor.set_input(name, inputs[name])
    executor.run()
    return executor.get_output(0).numpy()


@pytest.mark.parametrize(("kind", "weighted"), [
    ("ReduceSum", False), ("ReduceSum", True), ("ReduceMean", False), ("ReduceMax", False),
])  # fmt: skip
def test_embedding_bag_loops_become_one_operator(kind, weighted):
    mod, _ = from_onnx(model(kind, weighted))
    assert "nn.embedding_bag" in str(mod)
    assert "while_loop" not in str(mod)
    reduce = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max}[kind]
    for offsets in ([0, 3, 4, 9], [2]):
        inputs = {"positions": RNG.integers(-20, 20, 11), "offsets": np.array(offsets),
                  "factors": RNG.standard_normal(11, dtype=np.float32)}  # fmt: skip
        rows = TABLE[inputs["positions"]] * (inputs["factors"][:, None] if weighted else 1)
        expected = np.stack([reduce(rows[a:b], axis=0) for a, b in pairwise([*offsets, 11])])
        np.testing.assert_allclose(run(mod, inputs), expected, rtol=1e-5, atol=1e-5)


def test_empty_embedding_bags_are_zero():
    mod, _ = from_onnx(model())
    y = run(mod, {"positions": np.array([1, 2, 3]), "offsets": np.array([0, 0, 2, 2])})
    expected = np.stack([0 * TABLE[0], TABLE[1] + TABLE[2], 0 * TABLE[0], TABLE[3]])
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_constants_of_the_body_may_be_its_initializers():
    """As onnxruntime saves models."""
    saved = model()
    body = saved.graph.node[-1].attribute[0].g
    body.initializer.append(numpy_helper.from_array(np.array([0]), "zero_inside"))
    for node in body.node:
        node.input[:] = ["zero_inside" if name == "zero" else name for name in node.input]
    assert "nn.embedding_bag" in str(from_onnx(saved)[0])


def test_other_loops_stay_loops():
    changed = model()
    body = changed.graph.node[-1].attribute[0].g
    body.node[-2].attribute[0].i = 1  # keepdims
    assert "nn.embedding_bag" not in str(from_onnx(changed)[0])
