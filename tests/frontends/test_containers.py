"""Sequences, optional values and strings at the boundary of a model."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from frontends.onnx import ValueNeededError, from_onnx
from frontends.onnx.backend import RelayBackend
from frontends.onnx.containers import assembled

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def model(nodes: list, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> ModelProto:
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


def sequence(name: str, of: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, of, None)


def optional(name: str) -> ValueInfoProto:
    tensor = helper.make_tensor_type_proto(FLOAT, None)
    return helper.make_value_info(name, helper.make_optional_type_proto(tensor))


def test_sequences_come_and_go():
    nodes = [
        helper.make_node("SequenceInsert", ["xs", "y"], ["longer"]),
        helper.make_node("SequenceAt", ["xs", "first"], ["x0"]),
        helper.make_node("SequenceInsert", ["longer", "x0"], ["out"]),
        helper.make_node("Constant", [], ["first"], value_int=0),
    ]
    inputs = [sequence("xs"), helper.make_tensor_value_info("y", FLOAT, (3,))]
    prepared = RelayBackend.prepare(model(nodes, inputs, [sequence("out")]))
    a, b = np.ones((2, 2), np.float32), np.zeros(4, np.float32)
    y = np.arange(3, dtype=np.float32)
    (out,) = prepared.run([[a, b], y])
    assert [x.tolist() for x in out] == [x.tolist() for x in (a, b, y, a)]
    (out,) = prepared.run([[b], y])  # another length: compiled anew
    assert [x.tolist() for x in out] == [x.tolist() for x in (b, y, b)]


def test_a_sequence_needs_the_shapes_of_its_elements():
    proto = model([helper.make_node("SequenceLength", ["xs"], ["n"])], [sequence("xs")],
                  [helper.make_tensor_value_info("n", INT64, ())])  # fmt: skip
    with pytest.raises(ValueNeededError, match="how many tensors it holds"):
        from_onnx(proto)
    mod, _ = from_onnx(proto, shape={"xs": [(2,), (3, 4)]})
    assert [v.name for v in mod["main"].params] == ["xs[0]", "xs[1]"]


def test_optional_values():
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["has"]), helper.make_node("Identity", ["x"], ["out"])]
    outputs = [helper.make_tensor_value_info("has", TensorProto.BOOL, ()), optional("out")]
    prepared = RelayBackend.prepare(model(nodes, [optional("x")], outputs))
    x = np.ones(3, np.float32)
    has, out = prepared.run([x])
    assert bool(has) and out.tolist() == x.tolist()
    has, out = prepared.run([None])
    assert not bool(has) and out is None


def test_strings_are_computed_on_the_host_and_numbers_are_compiled():
    nodes = [
        helper.make_node("StringConcat", ["s", "s"], ["doubled"]),
        helper.make_node("Equal", ["s", "t"], ["same"]),
        helper.make_node("Where", ["same", "x", "zero"], ["picked"]),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
    ]
    strings = [helper.make_tensor_value_info(name, STRING, (2,)) for name in ("s", "t")]
    inputs = [*strings, helper.make_tensor_value_info("x", FLOAT, (2,))]
    types = {"doubled": STRING, "picked": FLOAT}
    outputs = [helper.make_tensor_value_info(name, of, (2,)) for name, of in types.items()]
    prepared = RelayBackend.prepare(model(nodes, inputs, outputs))
    s, t, x = np.array(["a", "ü"], object), np.array(["b", "ü"], object), np.array([1, 2], np.float32)
    doubled, picked = prepared.run([s, t, x])
    assert doubled.tolist() == ["aa", "üü"] and picked.tolist() == [0.0, 2.0]
    assert prepared.run([t, t, x])[1].tolist() == [1.0, 2.0]


def test_outputs_are_put_together_from_results():
    assert assembled([1, [0, None]], ["a", "b"]) == ["b", ["a", None]]
