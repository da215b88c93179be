"""`repeat_interleave` with computed repeats, which torch exports as a loop, becomes a gather."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.errors import ArgumentError
from relayc.frontends.onnx import from_onnx

RNG = np.random.default_rng(3)
INT64 = TensorProto.INT64


def model(shape, axis, *, spelled=True, behind=None, inside=()):
    """torch's loop: part i of x along `axis` is expanded to repeats[i]. `behind` takes the place of sizes behind it.

    The constants named in `inside` are initializers of the body, as onnxruntime saves them.
    """
    sizes = [d if isinstance(d, int) else -1 for d in shape]
    result = [d if isinstance(d, int) else 0 for d in shape]
    result[axis] = -1
    constants = {
        "always": np.array(True), "zero": np.array([0]), "added": np.array([axis + 1]), "result": np.array(result),
        "before": np.array([*sizes[:axis], 1]), "behind": np.array(behind or sizes[axis + 1 :], np.int64),
        "minus": np.array(-1),
    }  # fmt: skip
    one = numpy_helper.from_array(np.array([1]), "one")
    inner = [
        helper.make_node("SequenceAt", ["parts", "i"], ["part"]),
        helper.make_node("SequenceAt", ["counts", "i"], ["count"]),
        helper.make_node("Unsqueeze", ["part", "added"], ["wide"]),
        helper.make_node("Concat", ["before", "count", "behind"], ["plain"], axis=0),
        helper.make_node("Shape", ["plain"], ["rank"]),
        helper.make_node("ConstantOfShape", ["rank"], ["ones"], value=one),
        helper.make_node("Mul", ["ones", "minus"], ["minuses"]),
        helper.make_node("Equal", ["plain", "minuses"], ["kept"]),
        helper.make_node("Where", ["kept", "ones", "plain"], ["spelled"]),
        helper.make_node("Expand", ["wide", "spelled" if spelled else "plain"], ["expanded"]),
        helper.make_node("Reshape", ["expanded", "result"], ["some"]),
        helper.make_node("SequenceInsert", ["list", "some"], ["longer"]),
        helper.make_node("Cast", ["always"], ["on"], to=TensorProto.BOOL),
    ]
    lists = [helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in ("list", "longer")]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")]
    state = [helper.make_tensor_value_info("i", INT64, []), flags[0], lists[0]]
    held = {name: numpy_helper.from_array(value, name) for name, value in constants.items()}
    body = helper.make_graph(inner, "body", state, [flags[1], lists[1]], [held[name] for name in inside])
    nodes = [
        helper.make_node("Shape", ["repeats"], ["length"]),
        helper.make_node("ConstantOfShape", ["length"], ["parts_of_one"], value=one),
        helper.make_node("SplitToSequence", ["x", "parts_of_one"], ["parts"], axis=axis),
        helper.make_node("SplitToSequence", ["repeats", "parts_of_one"], ["counts"], axis=0),
        helper.make_node("SequenceEmpty", [], ["empty"]),
        helper.make_node("Squeeze", ["length", "zero"], ["trips"]),
        helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=body, name="loop"),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=axis),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
              helper.make_tensor_value_info("repeats", INT64, [shape[axis]])]  # fmt: skip
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [t for name, t in held.items() if name not in inside])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def run(mod, *inputs):
    executor = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))
    return executor(*inputs)[0].numpy()


@pytest.mark.parametrize("spelled", [True, False])
@pytest.mark.parametrize("shape, axis", [(["n"], 0), (["n", 3], 0), ([2, "n", 3], 1), (["b", "n"], 1)])
def test_parts_are_gathered(shape, axis, spelled):
    mod, _ = from_onnx(model(shape, axis, spelled=spelled))
    assert "control.loop" not in str(mod)
    for repeats in ([2, 0, 1], [4], [0, 0], [1, 0, 5, 1]):
        x = RNG.standard_normal([len(repeats) if k == axis else d if isinstance(d, int) else 3
                                 for k, d in enumerate(shape)], dtype=np.float32)  # fmt: skip
        np.testing.assert_array_equal(run(mod, x, np.array(repeats)), np.repeat(x, repeats, axis))


def test_constants_of_the_body_may_be_its_initializers():
    mod, _ = from_onnx(model(["n", 3], 0, inside=("added", "result", "before", "behind", "minus")))
    assert "control.loop" not in str(mod)
    x = RNG.standard_normal((3, 3), dtype=np.float32)
    np.testing.assert_array_equal(run(mod, x, np.array([2, 0, 1])), np.repeat(x, [2, 0, 1], 0))


def test_a_repeat_of_minus_one_is_expands_and_less_is_an_error():
    mod, _ = from_onnx(model(["n", 2], 0))
    x = RNG.standard_normal((3, 2), dtype=np.float32)
    np.testing.assert_array_equal(run(mod, x, np.array([2, -1, 1])), np.repeat(x, [2, 1, 1], 0))
    with pytest.raises(ArgumentError, match=r"node 'loop' \(Loop\).*the repeats, none of which is negative"):
        run(mod, x, np.array([4, -2, 1]))


def test_parts_that_are_expanded_along_another_axis_too():
    """The shape behind the repeats is not that of the parts: a loop, as it is written."""
    mod, _ = from_onnx(model(["n", 1], 0, behind=[2]))
    assert "control.loop" in str(mod)


def test_cut_and_concatenated_again():
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1, name="split"),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=1, name="join"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n"]),
              helper.make_tensor_value_info("sizes", INT64, ["k"])]  # fmt: skip
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    mod, _ = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert "sequence" not in str(mod)
    x = RNG.standard_normal((2, 5), dtype=np.float32)
    np.testing.assert_array_equal(run(mod, x, np.array([2, 3])), x)
    with pytest.raises(ArgumentError, match="the sum of the parts and the size that was cut"):
        run(mod, x, np.array([2, 2]))
