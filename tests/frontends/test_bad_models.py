"""Invalid models: each must fail quickly, with an import error that says what, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError, ValueNeededError, from_onnx
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError

FLOAT = TensorProto.FLOAT


def info(name: str, shape: list[Any] | None, elem_type: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(
    nodes: list[NodeProto],
    inputs: dict[str, list[Any] | None] | None = None,
    outputs: list[str] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    functions: list[FunctionProto] | None = None,
    domains: dict[str, int] | None = None,
) -> ModelProto:
    """A model over float inputs; one input x[2, 3] and one output y unless told otherwise."""
    inputs = {"x": [2, 3]} if inputs is None else inputs
    graph = helper.make_graph(
        nodes,
        "test",
        [info(name, shape) for name, shape in inputs.items()],
        [info(name, None, 0) for name in (outputs if outputs is not None else ["y"])],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions or [])


def relu(source: str = "x", target: str = "y", **attrs: Any) -> NodeProto:
    return helper.make_node("Relu", [source], [target], name=f"relu_{target}", **attrs)


def rejected(given: Any, *texts: str, error: type[CompileError] = OnnxImportError, **kwargs: Any) -> str:
    """Check that `from_onnx` fails on `given` with a message that contains `texts`."""
    with pytest.raises(error) as caught:
        from_onnx(given, **kwargs)
    message = str(caught.value)
    for text in texts:
        assert text in message, message
    return message


# files ----------------------------------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    rejected(tmp_path / "no.onnx", "no.onnx", "can't be read", "No such file")
    rejected(tmp_path, "can't be read")


@pytest.mark.parametrize("data", [b"", b"\x00" * 64, b"\xff" * 64, b"PK\x03\x04 a zip", b"hello world\n" * 10])
def test_files_of_another_kind(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(data)
    rejected(path, "other.onnx", "to do:")


def test_a_pointer_to_a_file_that_was_not_fetched(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    rejected(path, "Git LFS", "git lfs pull")


def test_an_object_of_another_type() -> None:
    rejected(3, "expected a path, a ModelProto, an ONNXProgram or the bytes")


def big_enough() -> bytes:
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((3, 5), np.float32), "b": rng.random(5, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="matmul"),
        helper.make_node("Add", ["a", "b"], ["c"], name="add"),
        helper.make_node("Softmax", ["c"], ["y"], name="softmax", axis=-1),
    ]
    return model(nodes, weights=weights).SerializeToString()


def test_every_truncation_is_rejected() -> None:
    data = big_enough()
    from_onnx(data)
    for size in range(len(data)):
        with pytest.raises(OnnxImportError):
            from_onnx(data[:size])


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_bytes_give_our_error_or_a_module(edits: list[tuple[int, int]]) -> None:
    data = bytearray(big_enough())
    for position, value in edits:
        data[position % len(data)] = value
    try:
        from_onnx(bytes(data))
    except CompileError as error:
        assert str(error)


# the frame of the model -----------------------------------------------------------------------------------------------


def edited(change: Callable[[ModelProto], None]) -> ModelProto:
    proto = model([relu()])
    change(proto)
    return proto


def test_no_graph_no_versions_no_outputs() -> None:
    rejected(ModelProto(ir_version=8), "no graph")
    rejected(edited(lambda m: m.ClearField("opset_import")), "opset_import")
    rejected(edited(lambda m: m.ClearField("ir_version")), "IR version")
    rejected(edited(lambda m: m.graph.ClearField("output")), "no outputs")


def test_opsets_that_do_not_exist() -> None:
    rejected(model([relu()], opset=99), "opset 99", "expected: opset 1 to", error=UnsupportedOperatorError)
    rejected(edited(lambda m: setattr(m.opset_import[0], "version", 0)), "opset version 0")
    both = edited(lambda m: m.opset_import.add(domain="", version=11))
    rejected(both, "at versions 18 and 11")


def test_inputs_that_are_not_tensors() -> None:
    def sequence(m: ModelProto) -> None:
        m.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, None))

    rejected(edited(sequence), "'relu_y' (Relu)", "input 0 is Sequence[?, float32], not a tensor")
    rejected(edited(lambda m: m.graph.input[0].ClearField("type")), "input 'x'", "it has no type")
    rejected(edited(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77)), "element type 77")


def test_duplicate_names() -> None:
    rejected(model([relu(), relu()]), "'relu_y' (Relu)", "both make 'y'")
    rejected(model([relu(target="x")], outputs=["x"]), "makes 'x'", "input or an initializer")
    twice = model([relu()])
    twice.graph.input.append(info("x", [2, 3]))
    rejected(twice, "two inputs are named 'x'")
    weights = model([helper.make_node("Add", ["x", "w"], ["y"])], weights={"w": np.ones(3, np.float32)})
    weights.graph.initializer.append(weights.graph.initializer[0])
    rejected(weights, "two initializers are named 'w'")


def test_names_that_nothing_makes() -> None:
    rejected(model([relu("hidden_0")]), "'relu_y' (Relu)", "reads 'hidden_0', which nothing makes")
    nodes = [relu("x", "hidden_0"), relu("hidden_O", "y")]
    rejected(model(nodes), "close are: 'hidden_0'")
    rejected(model([relu()], outputs=["z"]), "output 'z' is made by no node")


def test_cycles_are_shown() -> None:
    nodes = [relu("c", "a"), relu("a", "b"), relu("b", "c"), helper.make_node("Add", ["x", "c"], ["y"])]
    rejected(model(nodes), "the graph has a cycle", "'relu_a' (Relu)", "'relu_b' (Relu)", "'relu_c' (Relu)")
    rejected(model([relu("y", "y")]), "cycle")


def test_unsorted_nodes_are_taken() -> None:
    from_onnx(model([relu("a", "y"), relu("x", "a")]))


def test_all_unsupported_operators_are_listed_in_one_error() -> None:
    nodes = [
        helper.make_node("NoSuchOp", ["x"], ["a"], name="first"),
        helper.make_node("NoSuchOp", ["a"], ["b"], name="second"),
        helper.make_node("Magic", ["b"], ["c"], name="third", domain="com.example"),
        helper.make_node("Other", ["c"], ["y"], name="fourth", domain="not.imported"),
    ]
    rejected(
        model(nodes, domains={"com.example": 1}),
        "3 operators of this model are not supported",
        "NoSuchOp at opset 18: node 'first' (NoSuchOp), node 'second' (NoSuchOp)",
        "com.example::Magic at opset 1",
        "imports no version of the domain 'not.imported'",
        error=UnsupportedOperatorError,
    )


def test_the_domains_of_onnxruntime_need_no_import() -> None:
    """What its transformer optimizer returns imports ONNX's own operators only."""
    nodes = [
        helper.make_node("FastGelu", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("Scaler", ["a"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]),
    ]
    module, _ = from_onnx(model(nodes))
    assert module["main"].ret_type == TensorType((2, 3), "float32")


def test_an_operator_of_another_domain_is_not_taken_for_onnx_s() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], domain="com.example")
    rejected(model([node], domains={"com.example": 1}), "com.example::Relu", error=UnsupportedOperatorError)


def test_models_that_onnxruntime_saved_with_layouts_of_a_processor() -> None:
    node = helper.make_node("Conv", ["x", "x"], ["y"], name="c", domain="com.microsoft.nchwc")
    rejected(
        model([node], domains={"com.microsoft.nchwc": 1}),
        "com.microsoft.nchwc::Conv at opset 1: node 'c'",
        "take the original model",
        "ORT_ENABLE_EXTENDED",
        error=UnsupportedOperatorError,
    )


# nodes ----------------------------------------------------------------------------------------------------------------


def test_attributes() -> None:
    rejected(model([relu(alpha=1.0)]), "node 'relu_y' (Relu)", "attributes that this operator does not have", "'alpha'")
    softmax = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=1.5)
    rejected(model([softmax]), "node 's' (Softmax)", "the attribute 'axis' is a float; expected an int")
    softmax = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=7)
    rejected(model([softmax]), "node 's' (Softmax), opset 18: axis 7 of a tensor of rank 2", "from -2 to 1")
    twice = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=1)
    twice.attribute.append(twice.attribute[0])
    rejected(model([twice]), "'axis' is given twice")


def test_a_shape_that_does_not_fit_names_node_and_shapes() -> None:
    weights = {"w": np.ones((4, 5), np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="encoder/matmul")
    rejected(model([node], weights=weights), "node 'encoder/matmul' (MatMul)", "Tensor[(2, 3), float32]", "3 rows")


def test_missing_inputs_and_inputs_and_outputs_too_many() -> None:
    extra = helper.make_node("Relu", ["x", "x"], ["y"], name="r")
    rejected(model([extra]), "node 'r' (Relu)", "2 inputs of an operator that has 1")
    rejected(model([helper.make_node("Add", ["x"], ["y"], name="add")]), "node 'add' (Add)", "input 1 is missing")
    rejected(model([helper.make_node("Relu", ["x"], ["y", "z"], name="r")]), "2 outputs of an operator that has 1")


def test_element_types_that_differ() -> None:
    weights = {"w": np.ones(3, np.int64)}
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    rejected(model([node], weights=weights), "node 'add' (Add)", "float32", "int64")


def test_a_weight_of_the_wrong_size() -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], weights={"w": np.ones(3, np.float32)})
    proto.graph.initializer[0].dims[0] = 4
    rejected(proto, "initializer 'w'", "12 bytes", "expected: 16 bytes")


def test_absurd_shapes() -> None:
    rejected(
        model([helper.make_node("ConstantOfShape", ["s"], ["y"], name="big")], weights={"s": np.array([2**40, 2**20])}),
        "node 'big' (ConstantOfShape)",
        "expected: at most",
    )
    rejected(
        model([helper.make_node("Expand", ["x", "s"], ["y"], name="big")], weights={"s": np.array([2**33, 2, 3])}),
        "node 'big' (Expand)",
    )
    rejected(model([relu()], inputs={"x": [2**40, 2**20]}), "input 'x'", "at most")


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        (["Range", "a", "b", "c"], {"a": np.array(0), "b": np.array(2**31 - 2), "c": np.array(1)}),
        (["OneHot", "a", "b", "c"], {"a": np.array([1]), "b": np.array(2**30), "c": np.array([0.0, 1.0], np.float32)}),
        (["Resize", "x", "", "s"], {"s": np.array([1.0, 2e8], np.float32)}),
        (["Tile", "x", "r"], {"r": np.array([2**30, 2**30])}),
        (["Pad", "x", "p"], {"p": np.array([0, 0, 0, 2**40])}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_small_models_can_not_allocate_gigabytes(nodes: list[str], weights: dict[str, np.ndarray]) -> None:
    operator, *inputs = nodes
    rejected(model([helper.make_node(operator, inputs, ["y"], name="big")], weights=weights), "node 'big'", "at most")


def test_more_parts_than_outputs() -> None:
    split = helper.make_node("Split", ["x"], ["y", "z"], name="split", num_outputs=2**40)
    rejected(model([split]), "node 'split' (Split)", "expected: 2, the number of outputs")


def test_output_of_another_declared_type() -> None:
    proto = model([relu()])
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    rejected(proto, "output 'y'", "float32", "expected: int64, as declared")


def test_an_initializer_that_contradicts_its_input_declaration() -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], weights={"w": np.ones(3, np.float32)})
    proto.graph.input.append(info("w", [4]))
    rejected(proto, "initializer 'w'", "[3]", "expected: [4]")


# shapes passed by the user --------------------------------------------------------------------------------------------


def test_shape_overrides_that_make_no_sense() -> None:
    proto = model([relu()], inputs={"x": ["batch", 3]})
    rejected(proto, "shape= names 'z'", "'x'", "'batch' (a dimension)", shape={"z": (1, 3)})
    rejected(proto, "input 'x'", "2", shape={"x": (1, 3, 4)})
    rejected(proto, "dtype= names 'z'", dtype={"z": "float32"})
    rejected(proto, "unknown dtype 'float31'", dtype="float31")
    six = helper.make_node("Transpose", ["x"], ["y"], perm=[5, 4, 3, 2, 1, 0])
    rejected(model([six], inputs={"x": None}), "how many dimensions",
             "shape={'x': (1, 3, 224, 224)}", "--shape x:1,")
    rejected(proto, "shape= is (1, 3)", "a dictionary", shape=(1, 3))
    rejected(proto, "shape={'x': (2.0, 3)}", "numbers, names of sizes", shape={"x": (2.0, 3)})


def test_a_symbolic_shape_where_a_number_is_needed_names_the_input() -> None:
    proto = model([helper.make_node("Reshape", ["x", "s"], ["y"], name="reshape")])
    proto.graph.input.append(info("s", ["rank"], TensorProto.INT64))
    message = rejected(proto, "node 'reshape' (Reshape)", "rank", "shape={...}: 's'", error=ValueNeededError)
    assert message.count("\n") >= 2
    mod, _ = from_onnx(proto, shape={"rank": 3})
    assert mod["main"].params[1].shape == (3,)


def test_a_computed_operand_that_must_be_constant() -> None:
    proto = model([helper.make_node("ReduceSum", ["x", "s"], ["y"], name="reduce")])
    proto.graph.input.append(info("s", [1], TensorProto.INT64))
    rejected(proto, "node 'reduce' (ReduceSum)", "the axes (input 1)", "constants=", error=ValueNeededError)
    mod, _ = from_onnx(proto, constants={"s": np.array([1])})
    assert mod["main"].body.shape == (2, 1)


# functions and subgraphs ----------------------------------------------------------------------------------------------


def function(name: str, nodes: list[NodeProto], attributes: list[str] | None = None) -> FunctionProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, imports, attributes or [])


def test_functions_that_call_themselves() -> None:
    body = function("loop", [helper.make_node("loop", ["a"], ["b"], domain="local")])
    call = helper.make_node("loop", ["x"], ["y"], domain="local")
    rejected(model([call], functions=[body], domains={"local": 1}), "function 'loop'", "circle")


def test_functions_that_explode_are_refused_before_they_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [function("f0", [relu("a", "b")])]
    for i in range(1, 30):
        first = helper.make_node(f"f{i - 1}", ["a"], ["t"], domain="local")
        second = helper.make_node(f"f{i - 1}", ["t"], ["b"], domain="local")
        bodies.append(function(f"f{i}", [first, second]))
    call = helper.make_node("f29", ["x"], ["y"], domain="local")
    exploding = model([call], functions=bodies, domains={"local": 1})
    del exploding.graph.node[0]
    exploding.graph.node.append(relu("x", "y"))
    from_onnx(exploding)  # nothing calls them
    exploding.graph.node[0].CopyFrom(call)
    monkeypatch.setattr("relayc.frontends.onnx.importer._Importer._convert", pytest.fail)
    rejected(exploding, "function 'f29'", "too many nodes", "at most 100000")


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayc.frontends.onnx.importer.MAX_NODES", 10)
    names = ["x", *[f"x{i}" for i in range(11)], "y"]
    rejected(model(list(map(relu, names[:-1], names[1:]))), "more than 10 nodes")


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""

    def varint(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    return varint(number << 3 | 2) + varint(len(payload)) + payload


@pytest.mark.parametrize("depth", [20, 500])
def test_graphs_nested_deeply(depth: int) -> None:
    inner = GraphProto(output=[info("y", [2, 3])], node=[relu()]).SerializeToString()
    for level in range(depth):
        branches = b"".join(
            field(5, AttributeProto(name=name, type=AttributeProto.GRAPH).SerializeToString() + field(6, inner))
            for name in ("then_branch", "else_branch")[: 2 if level == 0 else 1]
        )
        node = NodeProto(op_type="If", input=["x"], output=["y"]).SerializeToString() + branches
        inner = GraphProto(output=[info("y", [2, 3])]).SerializeToString() + field(1, node)
    outer = GraphProto(input=[info("x", [2, 3])]).SerializeToString() + inner
    opset = helper.make_opsetid("", 18).SerializeToString()
    rejected(ModelProto(ir_version=8).SerializeToString() + field(7, outer) + field(8, opset))
