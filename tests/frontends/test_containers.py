"""Sequences, optional values and strings at the boundary of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.frontends.onnx import OnnxImportError, ValueNeededError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def model(nodes: list, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> ModelProto:
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


def sequence(name: str, of: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, of, None)


def sized(name: str, shape: Sequence[int | str] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


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


def test_a_model_that_was_changed_is_not_compiled_again():
    """An optional sequence needs a version of the model for each set of shapes."""
    tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    x = helper.make_value_info("x", helper.make_optional_type_proto(tensors))
    proto = model([helper.make_node("OptionalHasElement", ["x"], ["has"])], [x],
                  [helper.make_tensor_value_info("has", TensorProto.BOOL, ())])  # fmt: skip
    prepared, one = RelayBackend.prepare(proto), np.ones(2, np.float32)
    assert prepared.run([[one]])[0]
    proto.graph.node.append(helper.make_node("Not", ["has"], ["not"]))
    proto.graph.output[0].name = "not"
    assert prepared.run([[one]])[0]
    with pytest.raises(OnnxImportError, match="the model was changed after it had been prepared"):
        prepared.run([[one, one]])


def test_a_sequence_is_one_parameter_or_one_per_shape():
    proto = model([helper.make_node("SequenceLength", ["xs"], ["n"])], [sequence("xs")],
                  [helper.make_tensor_value_info("n", INT64, ())])  # fmt: skip
    mod, _ = from_onnx(proto)
    assert [str(v.ty) for v in mod["main"].params] == ["Sequence[?, float32]"]
    mod, _ = from_onnx(proto, shape={"xs": [(2,), (3, 4)]})
    assert [v.name for v in mod["main"].params] == ["xs[0]", "xs[1]"]


def test_an_optional_sequence_needs_shapes():
    tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    x = helper.make_value_info("x", helper.make_optional_type_proto(tensors))
    proto = model([helper.make_node("OptionalHasElement", ["x"], ["has"])], [x],
                  [helper.make_tensor_value_info("has", TensorProto.BOOL, ())])  # fmt: skip
    with pytest.raises(ValueNeededError, match="whether there is a value"):
        from_onnx(proto)


def test_an_optional_tensor_is_compiled_once():
    """A mask that a caller may leave out."""
    get = helper.make_node("OptionalGetElement", ["mask"], ["m"])
    inside = [helper.make_graph([get, helper.make_node("Mul", ["x", "m"], ["y"])], "with", [], [sized("y", None)]),
              helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "without", [], [sized("y", None)])]
    nodes = [helper.make_node("OptionalHasElement", ["mask"], ["has"]),
             helper.make_node("If", ["has"], ["y"], then_branch=inside[0], else_branch=inside[1])]  # fmt: skip
    declared = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["n", 3]))
    proto = model(nodes, [sized("x", ["n", 3]), helper.make_value_info("mask", declared)], [sized("y", None)])
    mod, _ = from_onnx(proto)
    assert str(mod["main"].params[1].ty) == "Optional[(?, 3), float32]"
    prepared = RelayBackend.prepare(proto)
    for n in (2, 5):
        x, mask = np.random.default_rng(n).standard_normal((2, n, 3), dtype=np.float32)
        assert prepared.run([x, mask])[0].tolist() == (x * mask).tolist()
        assert prepared.run([x, None])[0].tolist() == x.tolist()
    assert not prepared._specialised
    module = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))
    with pytest.raises(ArgumentError, match="input 'mask', a list of at most one value, needs"):
        module(x, [mask, mask])


def test_a_sequence_of_declared_rank_is_compiled_once():
    """`torch.cat([x * 2 for x in xs])` of an input sequence."""
    doubled = helper.make_graph([helper.make_node("Add", ["e", "e"], ["d"])], "map",
                                [helper.make_tensor_value_info("e", FLOAT, None)],
                                [helper.make_tensor_value_info("d", FLOAT, None)])  # fmt: skip
    nodes = [helper.make_node("SequenceMap", ["xs"], ["ys"], body=doubled, name="map"),
             helper.make_node("ConcatFromSequence", ["ys"], ["y"], axis=0)]  # fmt: skip
    xs = helper.make_tensor_sequence_value_info("xs", FLOAT, ["n", 3])
    proto = model(nodes, [xs], [sequence("ys"), helper.make_tensor_value_info("y", FLOAT, None)])
    mod, _ = from_onnx(proto)
    assert str(mod["main"].params[0].ty) == "Sequence[(?, 3), float32]"
    prepared = RelayBackend.prepare(proto)
    for sizes in ((1, 2), (4,), (2, 0, 3)):
        passed = [np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32) for n in sizes]
        ys, y = prepared.run([passed])
        assert [a.tolist() for a in ys] == [(2 * a).tolist() for a in passed]
        assert y.tolist() == np.concatenate([2 * a for a in passed]).tolist()
    assert not prepared._specialised
    with pytest.raises(ArgumentError, match="the sequence is empty"):
        prepared.run([[]])


def test_inputs_that_are_sequences_are_lists_of_arrays():
    xs = helper.make_tensor_sequence_value_info("xs", FLOAT, ["n", 3])
    proto = model([helper.make_node("SequenceLength", ["xs"], ["n"])], [xs],
                  [helper.make_tensor_value_info("n", INT64, ())])  # fmt: skip
    module = graph_executor.GraphModule(relay.build(from_onnx(proto)[0])["default"](device("cpu", 0)))
    (n,) = module([np.ones((2, 3), np.float32), np.ones((0, 3), np.float32)])
    assert n.numpy() == 2
    with pytest.raises(ArgumentError, match=r"input 'xs'.*got ndarray; expected a list of arrays"):
        module.set_input("xs", np.ones((2, 3), np.float32))
    with pytest.raises(ArgumentError, match=r"element 1 of input 'xs'.*got dtype float64; expected float32"):
        module.set_input("xs", [np.ones((2, 3), np.float32), np.ones((2, 3))])
    with pytest.raises(ArgumentError, match="is a sequence; use set_input"):
        module.set_input_zero_copy("xs", [])
    with pytest.raises(ArgumentError, match=r"is a sequence, which has no buffer"):
        module.get_input("xs")
    assert "xs: a list of float32" in repr(module)


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
