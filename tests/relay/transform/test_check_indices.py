"""The option "relay.check_indices": positions out of range are errors that name node, index and axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device
from relayc.backend.runtime.artifact import CompiledModel, load_model
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.onnx import from_onnx
from relayc.relay.transform import PassContext
from relayc.te.errors import CompileError

CHECKED = {"relay.check_indices": True}


def model(op: str, shape: Any, indices: Any, updates: Any = None, **attributes: Any) -> ModelProto:
    shapes = {"x": (TensorProto.FLOAT, shape), "i": (TensorProto.INT64, indices), "u": (TensorProto.FLOAT, updates)}
    names = ["x", "i", "u"][: 2 if updates is None else 3]
    given = [helper.make_tensor_value_info(name, *shapes[name]) for name in names]
    node = helper.make_node(op, names, ["y"], name="pick", **attributes)
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def built(proto: ModelProto, target: str = "llvm", **config: Any) -> CompiledModel:
    with PassContext(config=config):
        return relay.build(from_onnx(proto)[0], target)


CASES: list[tuple[ModelProto, Any, Any, str]] = [
    (model("Gather", [6, 3], [2], axis=0), [2, -6], [2, 99], r"99, at position \(1,\) .* axis 0, of size 6"),
    (model("Gather", ["n", 3], ["k"], axis=0), [2, -6], [-7, 0], r"-7, at position \(0,\) .* axis 0, of size 6"),
    (model("GatherElements", [6, 3], [1, 3], axis=1), [[0, 2, -3]], [[0, 3, 0]], r"3, .*\(0, 1\).* axis 1, of size 3"),
    (model("GatherND", [6, 3], [2, 2]), [[5, 2], [-6, -3]], [[0, 0], [5, 3]], r"3, at position \(1,\) .* axis 1"),
    (model("ScatterElements", [6, 3], [2, 3], [2, 3], axis=0), [[5, 0, -6]] * 2, [[0, 6, 0]] * 2, "6, .* axis 0"),
    (model("ScatterND", [6, 3], [2, 1], [2, 3]), [[5], [-6]], [[0], [-7]], "-7, .* axis 0, of size 6"),
]
"""Model, positions inside and outside, and the error."""


@pytest.mark.parametrize(("proto", "inside", "outside", "text"), CASES)
@pytest.mark.parametrize("target", ["llvm", "c", "interp"])
def test_positions_out_of_range_are_errors(proto, inside, outside, text, target):
    inputs = {"x": np.arange(18, dtype=np.float32).reshape(6, 3), "u": np.ones((2, 3), np.float32)}
    inputs = {value.name: inputs[value.name] for value in proto.graph.input if value.name != "i"}
    libraries = built(proto, target, **CHECKED), built(proto, target)
    checked, plain = [GraphModule(lib["default"](device(lib.graph.device))) for lib in libraries]
    results = [executor(**inputs, i=np.array(inside))[0].numpy() for executor in (checked, plain)]
    np.testing.assert_array_equal(*results)
    with pytest.raises(ArgumentError, match=rf"model 'default': {proto.graph.node[0].op_type} 'pick': index {text}"):
        checked(**inputs, i=np.array(outside))
    plain(**inputs, i=np.array(outside))


def test_constant_positions_are_checked_when_compiling():
    x = relay.var("x", shape=(6, 3))
    for positions, text in (([[0, 9]], "index 9, at position .* is outside of axis 0, of size 6"), ([[0, 5]], None)):
        taken = relay.op.gather_nd(x, relay.const(np.array(positions)))
        with PassContext(config=CHECKED):
            if text is None:
                assert "indices.check" not in str(relay.optimize(relay.Function((x,), taken)))
                continue
            with pytest.raises(CompileError, match=text):
                relay.optimize(relay.Function((x,), taken))


def test_the_check_is_part_of_an_artifact(tmp_path):
    built(CASES[0][0], **CHECKED).save(tmp_path / "checked.relayc")
    executor = GraphModule(load_model(tmp_path / "checked.relayc")["default"](device("cpu")))
    with pytest.raises(ArgumentError, match="index 99"):
        executor(x=np.ones((6, 3), np.float32), i=np.array([0, 99]))


def test_the_option_is_off_by_default():
    assert "indices.check" not in str(relay.optimize(from_onnx(CASES[0][0])[0]))
