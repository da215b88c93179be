"""from_onnx on small models: inputs, weights, shapes, functions and subgraphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.errors import OnnxImportError
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.interpreter import create_executor

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def info(name: str, shape: list[Any] | None, elem_type: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(
    nodes: list[NodeProto],
    inputs: list[Any] | None = None,
    outputs: list[str] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    functions: list[FunctionProto] | None = None,
    opset: int = 18,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [info("x", [2, 3])] if inputs is None else inputs,
        [info(name, None, 0) for name in (outputs if outputs is not None else ["y"])],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=functions or [])


def node(op_type: str, inputs: list[str], outputs: list[str], **attrs: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attrs)


def run(proto: ModelProto, *args: np.ndarray, **kwargs: Any) -> Any:
    mod, params = from_onnx(proto, **kwargs)
    return create_executor("debug", mod).evaluate()(*args, *params.values())


def calls(body: Expr) -> list[str]:
    return [str(e.op) for e in evaluation_order(body) if isinstance(e, Call)]


def test_weights_are_constants_or_parameters() -> None:
    weight = np.array([1.0, 2.0, 3.0], np.float32)
    proto = model([node("Mul", ["x", "w"], ["y"])], weights={"w": weight})
    frozen, params = from_onnx(proto)
    assert params == {} and [p.name for p in frozen["main"].params] == ["x"]
    free, params = from_onnx(proto, freeze_params=False)
    assert [p.name for p in free["main"].params] == ["x", "w"] and list(params) == ["w"]
    np.testing.assert_array_equal(params["w"], weight)
    np.testing.assert_array_equal(run(proto, X), X * weight)
    np.testing.assert_array_equal(run(proto, X, freeze_params=False), X * weight)


def test_an_initializer_that_is_also_listed_as_input_is_a_weight() -> None:
    proto = model([node("Mul", ["x", "w"], ["y"])], weights={"w": np.full(3, 2, np.float32)})
    proto.graph.input.append(info("w", [3]))
    mod, _ = from_onnx(proto)
    assert [p.name for p in mod["main"].params] == ["x"]
    assert mod.attrs["input_names"] == ["x"] and mod.attrs["output_names"] == ["y"]


def test_an_initializer_that_is_also_listed_as_input_can_be_overridden() -> None:
    weight = np.array([1.0, 2.0, 3.0], np.float32)
    proto = model([node("Mul", ["x", "w"], ["y"])], weights={"w": weight})
    proto.graph.input.append(info("w", [3]))
    np.testing.assert_array_equal(run(proto, X), X * weight)
    np.testing.assert_array_equal(run(proto, X, constants={"w": 2 * weight}), 2 * X * weight)
    np.testing.assert_array_equal(run(proto, X, 3 * weight, shape={"w": (3,)}), 3 * X * weight)


def test_several_outputs_and_outputs_that_are_inputs_or_weights() -> None:
    weight = np.ones(2, np.float32)
    proto = model([node("Neg", ["x"], ["n"])], outputs=["n", "x", "w", "n"], weights={"w": weight})
    n, x, w, again = run(proto, X)
    np.testing.assert_array_equal(n, -X)
    np.testing.assert_array_equal(again, -X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(w, weight)


def test_names_of_nodes_go_into_spans() -> None:
    mod, _ = from_onnx(model([node("Neg", ["x"], ["y"], name="layer1/neg")]))
    span = mod["main"].body.span
    assert (span.source, span.name, span.op) == ("test", "layer1/neg", "Neg")


def test_shape_arithmetic_is_folded() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["d"]),
        node("Unsqueeze", ["d", "zero"], ["u"]),
        node("Mul", ["u", "two"], ["v"]),
        node("Div", ["v", "two"], ["q"]),
        node("Concat", ["minus", "q"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ]
    weights = {
        "one": np.array(1),
        "zero": np.array([0]),
        "two": np.array([2]),
        "minus": np.array([-1]),
    }
    mod, _ = from_onnx(model(nodes, weights=weights))
    assert calls(mod["main"].body) == ["nn.relu"]
    assert mod["main"].body.shape == (2, 3)


def test_results_whose_number_is_known_because_the_operand_is() -> None:
    mask = np.array([[True, False, True], [False, True, True]])
    nodes = [
        node("NonZero", ["m"], ["where"]),
        node("Transpose", ["where"], ["at"]),
        node("GatherND", ["x", "at"], ["y"]),
        node("Compress", ["x", "c"], ["z"], axis=1),
    ]
    weights = {"m": mask, "c": np.array([True, False, True])}
    y, z = run(model(nodes, outputs=["y", "z"], weights=weights), X)
    np.testing.assert_array_equal(y, X[mask])
    np.testing.assert_array_equal(z, X[:, [0, 2]])


def test_static_sequences_are_resolved_at_import() -> None:
    nodes = [
        node("SplitToSequence", ["x", "one"], ["s"], axis=1),
        node("SequenceAt", ["s", "last"], ["a"]),
        node("SequenceInsert", ["s", "a", "zero"], ["longer"]),
        node("SequenceErase", ["longer"], ["shorter"]),
        node("SequenceLength", ["shorter"], ["n"]),
        node("ConcatFromSequence", ["shorter"], ["y"], axis=1),
    ]
    weights = {"one": np.array(1), "last": np.array(-1), "zero": np.array(0)}
    y, n = run(model(nodes, outputs=["y", "n"], weights=weights), X)
    np.testing.assert_array_equal(y, X[:, [2, 0, 1]])
    assert n == 3


def test_large_weights_are_not_folded_while_importing() -> None:
    weights = {"w": np.ones((300, 300), np.float32)}
    nodes = [node("Exp", ["w"], ["e"]), node("MatMul", ["x", "e"], ["y"])]
    mod, _ = from_onnx(model(nodes, inputs=[info("x", [2, 300])], weights=weights))
    assert "exp" in calls(mod["main"].body)


def test_a_splat_takes_no_memory() -> None:
    nodes = [node("ConstantOfShape", ["s"], ["w"]), node("Add", ["x", "w"], ["y"])]
    mod, _ = from_onnx(
        model(nodes, inputs=[info("x", [30000, 30000])], weights={"s": np.array([30000, 30000])}),
    )
    constant = next(e for e in evaluation_order(mod["main"].body) if isinstance(e, Constant))
    assert constant.data.strides == (0, 0)


def test_only_what_the_outputs_need_is_converted() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Reshape", ["x", "run_time"], ["unused"])]
    proto = model(nodes, inputs=[info("x", [2, 3]), info("run_time", [1], INT64)])
    mod, _ = from_onnx(proto)
    assert calls(mod["main"].body) == ["nn.relu"]


# shapes and types -----------------------------------------------------------------------------------------------------


def test_an_output_that_an_operator_does_not_give_may_be_named_but_not_read() -> None:
    norm = helper.make_node(
        "SkipSimplifiedLayerNormalization", ["x", "x", "scale"], ["y", "mean"], domain="com.microsoft", name="norm"
    )
    weights = {"scale": np.ones(3, np.float32)}
    expected = 2 * X / np.sqrt(np.mean(4.0 * X * X, axis=1, keepdims=True))
    for nodes, outputs in (([norm], ["y"]), ([norm], ["mean"]), ([norm, node("Relu", ["mean"], ["z"])], ["y", "z"])):
        proto = model(nodes, outputs=outputs, weights=weights)
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        if outputs == ["y"]:
            np.testing.assert_allclose(run(proto, X), expected, rtol=1e-5)
            continue
        with pytest.raises(OnnxImportError, match=r"node 'norm' .*: the output 'mean' is not given by this form"):
            from_onnx(proto)


def test_named_dimensions_are_one_variable_until_they_are_fixed() -> None:
    inputs = [info("a", ["n", 3]), info("b", ["n", 3])]
    proto = model([node("Add", ["a", "b"], ["y"])], inputs=inputs)
    mod, _ = from_onnx(proto)
    first, second = (p.shape[0] for p in mod["main"].params)
    assert first is second and mod["main"].body.shape[0] is first
    for shape in ({"n": 5}, {"a": (5, 3)}, {"a": (5, None), "b": ("n", 3)}):
        mod, _ = from_onnx(proto, shape=shape)
        assert [p.shape for p in mod["main"].params] == [(5, 3), (5, 3)], shape


def test_shape_overrides_a_fixed_dimension() -> None:
    mod, _ = from_onnx(model([node("Relu", ["x"], ["y"])]), shape={"x": (7, 3)})
    assert mod["main"].body.shape == (7, 3)


def test_a_name_given_to_a_dimension_can_be_fixed_as_one_that_the_model_has() -> None:
    """As by `relayc run --fill random --shape x:batch,3 --shape batch=7`."""
    proto = model([node("Relu", ["x"], ["y"])])
    for shape in ({"x": ("batch", 3), "batch": 7}, {"batch": 7, "x": ("batch", None)}):
        assert from_onnx(proto, shape=shape)[0]["main"].body.shape == (7, 3)


def test_dtype_overrides_inputs() -> None:
    proto = model([node("Relu", ["x"], ["y"])])
    assert from_onnx(proto, dtype="float16")[0]["main"].body.dtype == "float16"
    assert from_onnx(proto, dtype={"x": "float64"})[0]["main"].body.dtype == "float64"


def test_inputs_can_be_bound_to_values() -> None:
    inputs = [info("x", [2, 3]), info("s", ["rank"], INT64)]
    proto = model([node("Reshape", ["x", "s"], ["y"])], inputs=inputs)
    mod, _ = from_onnx(proto, constants={"s": np.array([3, -1])})
    assert [p.name for p in mod["main"].params] == ["x"] and mod["main"].body.shape == (3, 2)


# functions and subgraphs ----------------------------------------------------------------------------------------------


def test_functions_are_inlined_with_their_attributes() -> None:
    leaky = node("LeakyRelu", ["a"], ["t"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    body = helper.make_function(
        "local",
        "LeakyPlus",
        ["a", "c"],
        ["b"],
        [leaky, node("Add", ["t", "c"], ["b"])],
        [helper.make_opsetid("", 18)],
        ["slope"],
        [helper.make_attribute("unused", 3.0)],
    )
    nodes = [
        node("LeakyPlus", ["x", "w"], ["h"], domain="local", slope=0.5),
        node("LeakyPlus", ["h", "w"], ["y"], domain="local"),
    ]
    weight = np.array([1.0, -1.0, 0.5], np.float32)

    def leaky_plus(v: np.ndarray, slope: float) -> np.ndarray:
        return np.where(v >= 0, v, np.float32(slope) * v) + weight

    got = run(model(nodes, weights={"w": weight}, functions=[body]), X)
    np.testing.assert_allclose(got, leaky_plus(leaky_plus(X, 0.5), 0.01), rtol=1e-6)


def test_a_function_input_that_is_left_out() -> None:
    clip = node("Clip", ["a", "low", "high"], ["b"])
    body = helper.make_function("local", "C", ["a", "low", "high"], ["b"], [clip], [helper.make_opsetid("", 18)])
    call = node("C", ["x", "zero"], ["y"], domain="local")
    got = run(model([call], weights={"zero": np.zeros((), np.float32)}, functions=[body]), X)
    np.testing.assert_array_equal(got, np.maximum(X, 0))


def branch(op_type: str, name: str) -> Any:
    """A graph without inputs that reads `x` of the graph around it."""
    return helper.make_graph([node(op_type, ["x"], [name])], name, [], [info(name, [2, 3])])


@pytest.mark.parametrize("chosen", [True, False])
def test_if_takes_the_branch_of_a_constant_condition(chosen: bool) -> None:
    choose = node("If", ["c"], ["y"], then_branch=branch("Neg", "t"), else_branch=branch("Abs", "e"))
    got = run(model([choose], weights={"c": np.array(chosen)}), X)
    np.testing.assert_array_equal(got, -X if chosen else np.abs(X))


def test_loop_is_unrolled() -> None:
    body = helper.make_graph(
        [
            node("Add", ["v", "x"], ["v_out"]),
            node("Cast", ["i"], ["i_float"], to=FLOAT),
            node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("v", [2, 3])],
        [info("go_out", [], BOOL), info("v_out", [2, 3]), info("i_float", [])],
    )
    loop = node("Loop", ["count", "", "x"], ["y", "steps"], body=body)
    total, steps = run(model([loop], outputs=["y", "steps"], weights={"count": np.array(3)}), X)
    np.testing.assert_array_equal(total, 4 * X)
    np.testing.assert_array_equal(steps, np.arange(3, dtype=np.float32))


def test_scan_walks_both_ways() -> None:
    body = helper.make_graph(
        [node("Add", ["s", "r"], ["s_out"]), node("Identity", ["s_out"], ["o"])],
        "body",
        [info("s", [3]), info("r", [3])],
        [info("s_out", [3]), info("o", [3])],
    )
    scan = node("Scan", ["zero", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_directions=[1])
    last, sums = run(model([scan], outputs=["last", "y"], weights={"zero": np.zeros(3, np.float32)}), X)
    np.testing.assert_array_equal(last, X.sum(axis=0))
    np.testing.assert_array_equal(sums, np.cumsum(X[::-1], axis=0))


def test_a_chain_of_ten_thousand_nodes() -> None:
    count = 10_000
    nodes = [node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    mod, _ = from_onnx(model(nodes, inputs=[info("t0", [2])], outputs=[f"t{count}"]))
    assert len(calls(mod["main"].body)) == count


def test_shapes_of_numpy_s_integers_and_models_in_any_buffer() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [info("x", ["batch", 3])])
    for passed in ({"x": (np.int64(2), np.int32(3))}, {"x": [2, None]}, {"batch": np.int64(2)}):
        module, _ = from_onnx(proto, shape=passed)
        assert module["main"].params[0].shape == (2, 3)
    data = proto.SerializeToString()
    for buffer in (data, bytearray(data), memoryview(data)):
        assert str(from_onnx(buffer)[0]) == str(from_onnx(proto)[0])


def test_hard_swish_of_float64_is_the_function_that_defines_it() -> None:
    x = np.linspace(-4, 4, 6).reshape(2, 3)
    inputs = [info("x", [2, 3], TensorProto.DOUBLE)]
    sigmoid = node("HardSigmoid", ["x"], ["s"], alpha=float(np.float32(1 / 6)), beta=0.5)
    expected = run(model([sigmoid, node("Mul", ["x", "s"], ["y"])], inputs), x)
    np.testing.assert_allclose(run(model([node("HardSwish", ["x"], ["y"])], inputs), x), expected, rtol=1e-14)
