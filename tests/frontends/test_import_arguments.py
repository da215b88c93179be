"""Arguments of `from_onnx` and `relay.build` of other kinds, sizes beyond what int32 holds, and numpy's state."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, nd
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.sizes import extent
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.names import with_names_as_text
from relayc.relay.errors import InternalCompileError
from relayc.te.errors import CompileError
from relayc.te.tir import SizeVar


def model(nodes: list[Any], shape: Any, initializers: Any = (), kind: int = TensorProto.FLOAT) -> Any:
    inputs = [] if shape is None else [helper.make_tensor_value_info("x", kind, shape)]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def relu(shape: Any = ("n", 3)) -> Any:
    return model([helper.make_node("Relu", ["x"], ["y"])], shape)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shape": 3}, "shape="),
        ({"shape": {"x": "abc"}}, "'abc' is no size"),
        ({"shape": {"x": (1.5, 3)}}, r"1\.5 is no size"),
        ({"shape": {"n": True}}, "True is no size"),
        ({"shape": {"x": (2**70, 3)}}, "at most 2147483647 elements"),
        ({"shape": {"x": (2**62, 0)}}, "sizes that are too large"),
        ({"dtype": 3}, "dtype= is 3"),
        ({"dtype": {"x": 3}}, "dtype= is"),
        ({"dtype": b"float32"}, "dtype= is"),
        ({"constants": 3}, "constants= is 3; expected a dictionary"),
        ({"constants": {"x": 2**70}}, "constants= gives no array"),
        ({"constants": {"x": [[1.0], [1.0, 2.0]]}}, "constants= gives no array"),
        ({"outputs": "y"}, "outputs= is 'y'; expected a list of names"),
        ({"outputs": [3]}, "a name in outputs= is 3"),
        ({"outputs": 3}, "outputs= is 3"),
    ],
)
def test_arguments_of_the_import_of_other_kinds_are_refused(arguments, text):
    with pytest.raises(CompileError, match=text) as caught:
        from_onnx(relu(), **arguments)
    assert not isinstance(caught.value, InternalCompileError)


def test_a_shape_may_be_an_array_of_numpy():
    module, _ = from_onnx(relu(), shape={"x": np.array([2, 3])})
    assert module["main"].params[0].shape == (2, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"specialize": {"n": 8}}, {"specialize": {"n": ["8"]}}, {"specialize": {"n": [-1]}}, {"specialize": 3},
        {"specialize": {"n": [2**70]}}, {"caches": 3}, {"caches": {"x": 3}}, {"params": 3}, {"params": {3: 1}},
        {"mod_name": 3}, {"progress": 3}, {"target": 3},
    ],
)  # fmt: skip
def test_arguments_of_the_build_of_other_kinds_are_refused(arguments):
    module, _ = from_onnx(relu())
    with pytest.raises(CompileError) as caught:
        relay.build(module, **arguments)
    assert not isinstance(caught.value, InternalCompileError)


TOO_LARGE = "at most [0-9]+ elements"
HUGE_AND_EMPTY = [(0, 2**62, 4), (2**40, 0, 2**40), (0, 2**31, 2**31)]


@pytest.mark.parametrize("shape", HUGE_AND_EMPTY)
def test_empty_tensors_of_huge_sizes_are_refused(shape):
    empty = helper.make_tensor("x", TensorProto.FLOAT, shape, b"", raw=True)
    sizes = numpy_helper.from_array(np.array(shape), "x")
    for proto in (
        relu(shape),
        model([helper.make_node("Relu", ["x"], ["y"])], None, [empty]),
        model([helper.make_node("ConstantOfShape", ["x"], ["y"])], None, [sizes]),
        model([helper.make_node("Expand", ["o", "x"], ["y"])], None, [sizes, numpy_helper.from_array(np.ones(1), "o")]),
    ):
        with pytest.raises(CompileError, match=TOO_LARGE) as caught:
            from_onnx(proto)
        assert "ValueError" not in str(caught.value)
    with pytest.raises(CompileError):
        relay.var("x", shape=shape)
    with pytest.raises(ArgumentError, match="a product of at most"):
        nd.empty(shape)


def test_the_extent_of_a_shape_does_not_count_empty_dimensions():
    assert extent(()) == extent((0,)) == 1 and extent((2, 0, 3)) == 6 and extent((0, 2**62, 4)) == 2**64


@pytest.mark.parametrize("count", [2**31, 2**32, 2**33, 2**40, 2**62])
def test_repeats_beyond_int32_of_an_open_size_are_refused(count):
    """The size n * count wrapped: the memory planned was smaller than what was written."""
    repeats = numpy_helper.from_array(np.array([count, 3]), "r")
    with pytest.raises(CompileError, match=TOO_LARGE):
        from_onnx(model([helper.make_node("Tile", ["x", "r"], ["y"])], ("n", 1), [repeats]))
    with pytest.raises(CompileError):
        relay.var("x", shape=(SizeVar("n") * 2**33,))


NAMES = ("input", "node", "tensor", "dim", "graph", "inner", "fn", "domain", "operand", "location", "producer")


def named_everywhere() -> bytes:
    """A model in which the word MARK begins names of every kind."""
    weight = numpy_helper.from_array(np.ones(3, np.float32), "MARKtensor")
    stored = helper.make_tensor("MARKlocation", TensorProto.FLOAT, [0], b"", raw=True)
    stored.external_data.add(key="MARKkey", value="MARKvalue")
    body = helper.make_node("Add", ["MARKinput", "MARKtensor"], ["MARKinner"], name="MARKnode")
    inner = helper.make_tensor_value_info("MARKinner", TensorProto.FLOAT, ["MARKdim", 3])
    branch = helper.make_graph([body], "MARKgraph", [], [inner])
    choice = helper.make_node("If", ["c"], ["MARKresult"], then_branch=branch, else_branch=branch)
    function = helper.make_function(
        "MARKdomain", "MARKfn", ["MARKoperand"], ["MARKresult"],
        [helper.make_node("Relu", ["MARKoperand"], ["MARKresult"])], [helper.make_opsetid("", 18)],
    )  # fmt: skip
    graph = helper.make_graph(
        [choice, helper.make_node("MARKfn", ["MARKresult"], ["y"], domain="MARKdomain")],
        "MARKgraph",
        [helper.make_tensor_value_info("MARKinput", TensorProto.FLOAT, ["MARKdim", 3]),
         helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_empty_tensor_value_info("y")],
        [weight, stored],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("MARKdomain", 1)]
    proto = helper.make_model(
        graph, opset_imports=opsets, functions=[function], ir_version=10, producer_name="MARKproducer"
    )
    return proto.SerializeToString()


@pytest.mark.parametrize("name", ["", *NAMES])
def test_names_in_another_encoding_become_text(name, tmp_path):
    data = named_everywhere().replace(f"MARK{name}".encode(), f"\xff\xfeRK{name}".encode("latin-1"))
    (tmp_path / "model.onnx").write_bytes(data)
    for source in (data, tmp_path / "model.onnx", onnx.load_model_from_string(data)):
        module, _ = from_onnx(source)
        first = module["main"].params[0].name
        assert first == (r"\xff\xfeRKinput" if name in ("", "input") else "MARKinput")
        assert all(isinstance(text, str) for text in module.attrs["input_names"])
    relay.build(module)


def test_names_that_are_text_are_not_copied():
    proto = onnx.load_model_from_string(named_everywhere())
    assert with_names_as_text(proto) is proto


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("StringSplit", ["x"], {}), ("StringSplit", ["i"], {}), ("StringNormalizer", ["x"], {}),
        ("StringNormalizer", ["i"], {"case_change_action": "LOWER"}), ("RegexFullMatch", ["x"], {"pattern": "a"}),
        ("MatMul", ["s", "s"], {}), ("Gather", ["x", "s"], {}), ("Einsum", ["s", "s"], {"equation": "i,i->i"}),
        ("Tokenizer", ["x"], {"mark": 0, "pad_value": "#", "mincharnum": 1, "separators": [""],
                             "domain": "com.microsoft"}),
    ],
)  # fmt: skip
def test_strings_and_numbers_are_told_apart_before_constants_are_folded(op, inputs, attributes):
    constants = [
        numpy_helper.from_array(np.ones(2, np.float32), "x"), numpy_helper.from_array(np.ones(2, np.int64), "i"),
        helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"]),
    ]  # fmt: skip
    proto = model([helper.make_node(op, inputs, ["y"], name="node", **attributes)], None, constants)
    proto.opset_import[0].version = 20
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(CompileError, match="strings") as caught:
        from_onnx(proto)
    assert "node 'node'" in str(caught.value) and "Error:" not in str(caught.value)


def fractions() -> Any:
    """Constants whose folding divides by 0, overflows and underflows."""
    values = numpy_helper.from_array(np.array([3e38, 0.0, -1.0, 1e-38], np.float32), "c")
    nodes = [
        helper.make_node("Div", ["c", "c"], ["a"]), helper.make_node("Mul", ["c", "c"], ["b"]),
        helper.make_node("Sqrt", ["c"], ["d"]), helper.make_node("Cast", ["c"], ["e"], to=TensorProto.INT8),
        helper.make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT), helper.make_node("Log", ["c"], ["g"]),
        helper.make_node("Sum", ["a", "b", "d", "f", "g", "x"], ["y"]),
    ]  # fmt: skip
    return model(nodes, (4,), [values])


def test_numpys_error_state_does_not_change_results():
    x = np.ones(4, np.float32)

    def result() -> Any:
        return GraphModule(relay.build(from_onnx(fractions())[0])["default"](device("cpu")))(x)[0].numpy()

    expected = result()
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(result(), expected)
        assert np.geterr()["divide"] == "raise"
