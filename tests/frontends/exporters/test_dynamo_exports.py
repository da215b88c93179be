"""Graphs as torch's dynamo exporter writes them: sizes by Shape with bounds, functions in domains of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, helper

from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend
from tests.frontends.exporters.graphs import Graph, check, dynamo

rng = np.random.default_rng(0)
LIBRARY, COMMON = "pkg.onnxscript.torch_lib", "pkg.onnxscript.torch_lib.common"
FAR = np.iinfo(np.int64).max


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def size(g: Graph, x: str, axis: int) -> str:
    return g("Squeeze", g("Shape", x, start=axis, end=axis + 1))


def dims(g: Graph, parts: Sequence[Any]) -> str:
    """A shape out of numbers and scalars, every part reshaped to a vector."""
    vectors = [g("Constant", value_ints=[p]) if isinstance(p, int) else g("Reshape", p, g("Constant", value_ints=[-1]),
               allowzero=0) for p in parts]  # fmt: skip
    return g("Concat", *vectors, axis=0)


def sliced(g: Graph, x: str, begin: int, end: int, axis: int) -> str:
    """x[.., begin:end], every position cast, and made a vector."""
    at = [g("Reshape", g("Cast", g.constant(np.int64(v)), to=7), g("Constant", value_ints=[-1]), allowzero=0)
          for v in (begin, end, axis)]  # fmt: skip
    return g("Slice", x, *at, g("Constant", value_ints=[1]))


def with_metadata(model: ModelProto) -> ModelProto:
    """Add the exporter's metadata, which the importer ignores, to a model."""
    for i, node in enumerate(model.graph.node):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'layers.{i}']")
        node.doc_string = "File model.py, line 1, in forward"
    model.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="inputs: x")
    return model


@pytest.mark.parametrize("opset", [18, 20])
def test_attention_with_rotary_positions(opset):
    """Grouped heads by Expand, rotation by halves of Slice and Concat, a mask out of Range with CastLike."""
    hidden, heads, groups, width = 16, 4, 2, 4
    g = Graph(dynamo)
    x = g.input("x", ["s0", "s1", hidden])
    batch, length = size(g, x, 0), size(g, x, 1)
    begin, step = (g("CastLike", g.constant(np.float32(v)), length) for v in (0, 1))
    steps = g("Range", begin, length, step)
    frequencies = g.weight((1 / 10 ** np.linspace(0, 2, width // 2)).astype(np.float32), "inv_freq")
    column = g("Unsqueeze", g("Cast", steps, to=1), g.constant([1]))
    turns = g("Mul", column, g("Unsqueeze", frequencies, g.constant([0])))
    both = g("Concat", turns, turns, axis=-1)
    cosine, sine = g("Cos", both), g("Sin", both)

    def heads_of(name: str, count: int) -> str:
        product = g("MatMul", x, g("Transpose", g.weight(normal(count * width, hidden) / 4, name), perm=[1, 0]))
        split = g("Reshape", product, dims(g, [batch, length, count, width]), allowzero=1)
        return g("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(y: str) -> str:
        low, high = sliced(g, y, 0, width // 2, 3), sliced(g, y, width // 2, FAR, 3)
        return g("Add", g("Mul", y, cosine), g("Mul", g("Concat", g("Neg", high), low, axis=-1), sine))

    def repeated(y: str) -> str:
        wide = g("Expand", g("Unsqueeze", y, g.constant([2])), dims(g, [batch, groups, heads // groups, length, width]))
        return g("Reshape", wide, dims(g, [batch, heads, length, width]), allowzero=1)

    query, key = rotated(heads_of("q.weight", heads)), repeated(rotated(heads_of("k.weight", groups)))
    value = repeated(heads_of("v.weight", groups))
    seen = g("LessOrEqual", g("Unsqueeze", steps, g.constant([0])), g("Unsqueeze", steps, g.constant([1])))
    mask = g("Where", seen, g.constant(np.float32(0)), g.constant(np.float32(-3.4028235e38)))
    root = g.constant(np.float32(2**-0.5))
    scores = g("MatMul", g("Mul", query, root), g("Mul", g("Transpose", key, perm=[0, 1, 3, 2]), root))
    mixed = g("MatMul", g("Softmax", g("Add", scores, mask), axis=-1), value)
    target = dims(g, [batch, length, heads * width])
    merged = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), target, allowzero=1)
    model = with_metadata(g.model([merged], opset, ir_version=10))
    check(model, *({"x": normal(b, t, hidden)} for b, t in ((2, 5), (1, 1), (3, 7))), rtol=1e-3, atol=1e-4)


# functions of the model's own -----------------------------------------------------------------------------------------


def node(op: str, inputs: list[str], outputs: list[str], domain: str = "", **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs, outputs, domain=domain, **attrs)


def refers(of: NodeProto, name: str, to: str, kind: int) -> NodeProto:
    """The node with attribute `name` taken from the attribute `to` of the function."""
    attribute = AttributeProto(name=name, ref_attr_name=to, type=kind)  # type: ignore[arg-type]
    of.attribute.append(attribute)
    return of


def function(
    domain: str, name: str, inputs: list[str], outputs: list[str], nodes: list[NodeProto], **more: Any
) -> FunctionProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(COMMON, 1), helper.make_opsetid(LIBRARY, 1)]
    return helper.make_function(domain, name, inputs, outputs, nodes, imports, **more)


def library() -> list[FunctionProto]:
    """Functions like those of torch_lib: nested, with attributes with and without defaults, and with an If."""
    rank = function(COMMON, "Rank", ["input"], ["result"], [
        node("Shape", ["input"], ["shape"]), node("Size", ["shape"], ["result"]),
    ])  # fmt: skip
    scalar = function(COMMON, "IsScalar", ["input"], ["result"], [
        node("Rank", ["input"], ["rank"], COMMON), node("Constant", [], ["zero"], value_int=0),
        node("Equal", ["rank", "zero"], ["result"]),
    ])  # fmt: skip
    vector = helper.make_graph(
        [node("Constant", [], ["minus"], value_ints=[-1]), node("Reshape", ["self", "minus"], ["r1"])],
        "then", [], [helper.make_empty_tensor_value_info("r1")],
    )  # fmt: skip
    same = helper.make_graph([node("Identity", ["self"], ["r2"])], "else", [],
                             [helper.make_empty_tensor_value_info("r2")])  # fmt: skip
    softmax = function(LIBRARY, "aten_softmax_no_dtype", ["self"], ["result"], [
        node("IsScalar", ["self"], ["scalar"], COMMON),
        node("If", ["scalar"], ["a"], then_branch=vector, else_branch=same),
        refers(node("Softmax", ["a"], ["result"]), "axis", "dim", AttributeProto.INT),
    ], attributes=["dim"])  # fmt: skip
    addmm = function(LIBRARY, "aten_addmm", ["self", "a", "b"], ["result"], [
        refers(refers(node("Gemm", ["a", "b", "self"], ["result"]), "alpha", "alpha", AttributeProto.FLOAT),
               "beta", "beta", AttributeProto.FLOAT),
    ], attribute_protos=[helper.make_attribute("alpha", 1.0), helper.make_attribute("beta", 1.0)])  # fmt: skip
    gelu = function(LIBRARY, "aten_gelu", ["self"], ["result"], [
        node("Constant", [], ["root"], value_float=2**0.5), node("CastLike", ["root", "self"], ["c"]),
        node("Div", ["self", "c"], ["d"]), node("Erf", ["d"], ["e"]),
        node("Constant", [], ["one"], value_float=1.0), node("Add", ["e", "one"], ["f"]),
        node("Mul", ["self", "f"], ["h"]),
        node("Constant", [], ["half"], value_float=0.5), node("Mul", ["h", "half"], ["result"]),
    ])  # fmt: skip
    block = function("pkg.torch.2.4.0", "Block_1", ["x", "w", "b"], ["y"], [
        node("aten_addmm", ["b", "x", "w"], ["h"], LIBRARY, alpha=0.5), node("aten_gelu", ["h"], ["g"], LIBRARY),
        node("aten_softmax_no_dtype", ["g"], ["y"], LIBRARY, dim=-1),
    ])  # fmt: skip
    return [rank, scalar, softmax, addmm, gelu, block]


DOMAINS = {LIBRARY: 1, COMMON: 1, "pkg.torch.2.4.0": 1}


def test_functions_of_the_model():
    """Modules are functions that call functions of a library; attributes are passed on, or take their default."""
    g = Graph(dynamo)
    x = g.input("x", ["s0", 6])
    weights = [g.weight(normal(6, 6), "w"), g.weight(normal(6), "b")]
    y = g("Block_1", x, *weights, domain="pkg.torch.2.4.0")
    z = g("Block_1", y, *weights, domain="pkg.torch.2.4.0")
    again = g("aten_addmm", weights[1], z, weights[0], domain=LIBRARY)
    model = with_metadata(g.model([z, again], 18, DOMAINS, library()))
    check(model, {"x": normal(3, 6)}, {"x": normal(1, 6)})


def test_a_function_in_the_place_of_an_operator():
    """A function of the model goes before the operator of its name (onnxruntime has it the other way round)."""
    g = Graph(dynamo)
    x = g.input("x", [2, 3])
    twice = helper.make_function("com.microsoft", "Gelu", ["x"], ["y"], [node("Add", ["x", "x"], ["y"])],
                                 [helper.make_opsetid("", 18)])  # fmt: skip
    model = g.model([g("Gelu", x, domain="com.microsoft")], 18, {"com.microsoft": 1}, [twice])
    value = normal(2, 3)
    np.testing.assert_array_equal(RelayBackend.run_model(model, [value])[0], value + value)


def test_overloads():
    """Functions of one name are told apart by their overload (IR version 10)."""
    def scaled(overload: str, factor: float) -> FunctionProto:
        nodes = [node("Constant", [], ["f"], value_float=factor), node("Mul", ["x", "f"], ["y"])]
        made = helper.make_function("pkg.custom", "scale", ["x"], ["y"], nodes, [helper.make_opsetid("", 18)])
        made.overload = overload
        return made

    g = Graph(dynamo)
    x = g.input("x", [2, 3])
    y = g("scale", x, domain="pkg.custom")
    z = g("scale", y, domain="pkg.custom")
    for made, overload in zip(g.nodes, ("two", "three"), strict=True):
        made.overload = overload
    model = g.model([z], 18, {"pkg.custom": 1}, [scaled("two", 2.0), scaled("three", 3.0)], ir_version=10)
    (outputs,) = check(model, {"x": normal(2, 3)})
    assert outputs[0].shape == (2, 3)


def test_functions_that_call_each_other_are_rejected_by_name():
    a = helper.make_function("pkg.loop", "a", ["x"], ["y"], [node("b", ["x"], ["y"], "pkg.loop")],
                             [helper.make_opsetid("", 18), helper.make_opsetid("pkg.loop", 1)])  # fmt: skip
    b = helper.make_function("pkg.loop", "b", ["x"], ["y"], [node("a", ["x"], ["y"], "pkg.loop")],
                             [helper.make_opsetid("", 18), helper.make_opsetid("pkg.loop", 1)])  # fmt: skip
    g = Graph(dynamo)
    model = g.model([g("a", g.input("x", [2]), domain="pkg.loop")], 18, {"pkg.loop": 1}, [a, b])
    with pytest.raises(OnnxImportError, match=r"function '[ab]'.*circle"):
        from_onnx(model)
