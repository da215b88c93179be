"""Models of thousands of nodes, operands or results, of the kinds that programs write: they compile and are right.

No step recurses along the model, and the work is linear in it. Kernels are counted: equal parts share them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.compile_growth import SHAPES, model
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.lowering.driver import _name_outputs
from tests.effort import growth

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
X = np.array([[0.5, -0.25, 1.5, 0.0, -2.0, 3.0]], np.float32)
ORDER = np.array([1, 0, 3, 2, 5, 4])
WEIGHTS = {
    "one": np.float32([1.0]),
    "half": np.float32([0.5]),
    "order": ORDER,
    "column": np.array([6, 1]),
    "row": np.array([1, 6]),
    "first": np.array([0]),
    "last": np.array([6]),
    "inner": np.array([1]),
    "pads": np.array([0, 1, 0, 1]),
    "seven": np.array([7]),
    "sizes": np.ones(600, np.int64),
    "chosen": np.array([[True, False, True, True, False, False]]),
    "matrix": np.linspace(-1, 1, 36, dtype=np.float32).reshape(6, 6),
    "integers": np.arange(-8, 28, dtype=np.int32).reshape(6, 6) % 7,
    "scale": np.float32(0.05),
    "zero": np.int8(0),
}  # fmt: skip


def build(
    nodes: Sequence[NodeProto], inputs: dict[str, np.ndarray], outputs: Sequence[str]
) -> tuple[list[np.ndarray], int]:
    """The outputs of a model and the number of its kernels."""
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()
    ]
    weights = [numpy_helper.from_array(v, k) for k, v in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "long", infos, [helper.make_empty_tensor_value_info(o) for o in outputs], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    lib = relay.build(from_onnx(model)[0])
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for name, value in inputs.items():
        module.set_input(name, value)
    module.run()
    return [module.get_output(i).numpy() for i in range(len(outputs))], lib.build_report.kernels


Link = Callable[[str, str], list[NodeProto]]


def one(op: str, *others: str, **attrs: object) -> Link:
    return lambda x, y: [helper.make_node(op, [x, *others], [y], **attrs)]


def two(first: Link, second: Link) -> Link:
    return lambda x, y: [*first(x, y + "'"), *second(y + "'", y)]


LINKS: dict[str, tuple[Link, Callable[[np.ndarray], np.ndarray]]] = {
    "tanh": (one("Tanh"), np.tanh),
    "add": (one("Add", "one"), lambda x: x + np.float32(1)),
    "gather": (one("Gather", "order", axis=1), lambda x: x[:, ORDER]),
    "transpose": (two(one("Transpose"), one("Reshape", "row")), lambda x: x),
    "pad": (two(one("Pad", "pads", mode="reflect"), one("Slice", "inner", "seven", "inner")), lambda x: x),
    "concat": (two(one("Concat", "x", axis=1), one("Slice", "first", "last", "inner")), lambda x: x),
    "where": (lambda x, y: [helper.make_node("Where", ["chosen", x, "one"], [y])],
              lambda x: np.where(WEIGHTS["chosen"], x, np.float32(1))),
    "where twice": (lambda x, y: [helper.make_node("Neg", [x], [y + "'"]),
                                  helper.make_node("Where", ["chosen", x, y + "'"], [y])],
                    lambda x: np.where(WEIGHTS["chosen"], x, -x)),
    "twice": (two(lambda x, y: [helper.make_node("Add", [x, x], [y])], one("Mul", "half")), lambda x: x),
    "softmax": (one("Softmax"), lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()),
}  # fmt: skip


def chain(links: Sequence[str]) -> tuple[list[NodeProto], str, np.ndarray]:
    """The nodes of a chain, its last name, and what it computes of X."""
    nodes: list[NodeProto] = []
    name, value = "x", X
    for i, link in enumerate(links):
        make, compute = LINKS[link]
        nodes += make(name, f"y{i}")
        name, value = f"y{i}", compute(value)
    return nodes, name, value


@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_one_operator(link: str) -> None:
    nodes, name, expected = chain([link] * 300)
    (found,), kernels = build(nodes, {"x": X}, [name])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert kernels <= 6


QUANTIZED = two(one("QuantizeLinear", "scale", "zero"), one("DequantizeLinear", "scale", "zero"))
ENDS: dict[str, tuple[Link, Callable[[np.ndarray], np.ndarray]]] = {
    "quantised": (QUANTIZED, lambda x: np.clip(np.rint(x / np.float32(0.05)), -128, 127) * np.float32(0.05)),
    "product": (one("MatMul", "matrix"), lambda x: x @ WEIGHTS["matrix"]),
    "scores": (two(one("Softmax"), one("MatMul", "matrix")), lambda x: LINKS["softmax"][1](x) @ WEIGHTS["matrix"]),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("link", ["add", "transpose", "concat", "twice"])
def test_what_reads_the_end_of_a_chain(link: str, end: str) -> None:
    """Rules look back from quantisations, products and softmaxes to what they are computed of."""
    nodes, name, value = chain([link] * 700)
    make, compute = ENDS[end]
    (found,), _ = build([*nodes, *make(name, "end")], {"x": X}, ["end"])
    np.testing.assert_allclose(found, compute(value), rtol=1e-4, atol=1e-4)


FORKS: dict[str, Link] = {
    "residual": lambda x, y: [helper.make_node("Relu", [x], [y + "'"]), helper.make_node("Add", [y + "'", x], [y])],
    "gate": lambda x, y: [helper.make_node("Sigmoid", [x], [y + "'"]), helper.make_node("Mul", [y + "'", x], [y])],
    "turned": lambda x, y: [helper.make_node("Transpose", [x], [y + "'"]), helper.make_node("Add", [x, y + "'"], [y])],
    "difference": lambda x, y: [
        helper.make_node("Transpose", [x], [y + "'"]), helper.make_node("Sub", [x, y + "'"], [y])
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("fork", "end"),
    [*itertools.product(FORKS, ("scores", "quantised")), ("residual", "integers"), ("difference", "integers")],
)
def test_paths_that_fork_and_join_are_walked_once(fork: str, end: str) -> None:
    """Their number doubles with each fork, the work does not."""
    kind, last = ("int32", one("MatMul", "integers")) if end == "integers" else ("float32", ENDS[end][0])

    def compile_model(count: int) -> None:
        nodes = [n for i in range(count) for n in FORKS[fork](f"y{i}" if i else "x", f"y{i + 1}")]
        build([*nodes, *last(f"y{count}", "end")], {"x": np.ones((6, 6), kind)}, ["end"])

    assert growth(compile_model, 2, 11, 22) < 6  # 2 and some kernels that differ; 20 if each path were walked


@pytest.mark.slow
def test_a_chain_of_twenty_thousand_nodes() -> None:
    nodes, name, expected = chain([*LINKS] * 1334)
    assert len(nodes) > 20_000
    (found,), kernels = build(nodes, {"x": X}, [name])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert kernels <= 30


def test_an_index_into_itself() -> None:
    x = np.array([3, 5, 1, 0, 2, 4])
    nodes = [helper.make_node("Gather", [f"y{i}" if i else "x"] * 2, [f"y{i + 1}"]) for i in range(200)]
    (found,), kernels = build(nodes, {"x": x}, ["y200"])
    for _ in range(200):
        x = x[x]
    np.testing.assert_array_equal(found, x)
    assert kernels <= 2


def test_many_inputs_and_outputs() -> None:
    count = 600
    inputs = {f"x{i}": X + np.float32(i) for i in range(count)}
    nodes = [helper.make_node("Tanh", [x], [f"t{i}"]) for i, x in enumerate(inputs)]
    outputs = [f"t{i}" for i in range(count)]
    nodes.append(helper.make_node("Concat", outputs, ["joined"], axis=0))
    found, kernels = build(nodes, inputs, ["joined", *outputs])
    np.testing.assert_allclose(found[0], np.tanh(np.concatenate([*inputs.values()])), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(found[1:]), found[0])
    assert kernels <= 4


def test_a_split_by_a_long_list_of_sizes() -> None:
    x = np.arange(600, dtype=np.float32)
    nodes = [helper.make_node("Split", ["x", "sizes"], [f"y{i}" for i in range(600)])]
    found, kernels = build(nodes, {"x": x}, [f"y{i}" for i in range(600)])
    np.testing.assert_array_equal(np.concatenate(found), x)
    assert kernels == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_of_compiling_is_linear(shape: str) -> None:
    def compile_model(count: int) -> None:
        mod, params = from_onnx(model(shape, count))
        relay.build(mod, params=params)

    assert growth(compile_model, 20, 100, 200) < 2.1


class _Unsearched(list[int]):
    def __contains__(self, item: object) -> bool:
        pytest.fail("the inputs are searched for each output, which takes a second for 10,000")


def test_outputs_are_named_without_a_search_for_each() -> None:
    tensors = [SimpleNamespace(name=f"t{i}") for i in range(4)]
    graph: Any = SimpleNamespace(inputs=_Unsearched([0, 1]), outputs=[1, 3], tensors=tensors)
    _name_outputs(graph, {"output_names": ["y0", "y1"]})
    assert [tensor.name for tensor in tensors] == ["t0", "t1", "t2", "y1"]


def test_equal_branches_run_the_same_functions() -> None:
    def functions(count: int) -> int:
        compiled = relay.build(from_onnx(model("branches", count))[0])
        return len(set(re.findall(r"relayc_\w+", json.dumps(compiled.graph.to_json()))))

    assert functions(60) <= functions(10) + 2


def lookups(depth: int) -> ModelProto:
    """What a table has at the first of `depth` positions behind `i` where another table is above x; else 0."""
    nodes, result = [], "none"
    for k in reversed(range(depth)):
        nodes += [
            helper.make_node("Add", ["i", f"k{k}"], [f"i{k}"]),
            helper.make_node("Gather", ["bounds", f"i{k}"], [f"b{k}"]),
            helper.make_node("Less", ["x", f"b{k}"], [f"c{k}"]),
            helper.make_node("Gather", ["values", f"i{k}"], [f"v{k}"]),
            helper.make_node("Where", [f"c{k}", f"v{k}", result], [f"y{k}"]),
        ]
        result = f"y{k}"
    weights = [numpy_helper.from_array(np.array(k), f"k{k}") for k in range(depth)]
    weights.append(numpy_helper.from_array(np.float32(0), "none"))
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["n"]), info("i", INT64, ["n"])]
    inputs += [info(name, TensorProto.FLOAT, ["size"]) for name in ("bounds", "values")]
    graph = helper.make_graph(nodes, "lookups", inputs, [info(result, TensorProto.FLOAT, ["n"])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_reads_of_tables_inside_conditions_do_not_double_with_each_condition():
    assert growth(lambda depth: relay.build(from_onnx(lookups(depth))[0]), 2, 4, 8) < 3
    bounds, values = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.float32), np.arange(1, 9, dtype=np.float32)
    x, i = np.linspace(0, 8, 37, dtype=np.float32), np.arange(37) % 5
    module = graph_executor.GraphModule(relay.build(from_onnx(lookups(4))[0])["default"](device("cpu", 0)))
    (result,) = module.infer({"x": x, "i": i, "bounds": bounds, "values": values})
    found = [next((values[at + k] for k in range(4) if a < bounds[at + k]), 0) for a, at in zip(x, i, strict=True)]
    np.testing.assert_array_equal(result, found)
