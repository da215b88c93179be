"""MatMul and Gemm in all forms, types and with symbolic sizes, against numpy in twice the precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.transform import PassContext

Array = np.ndarray[Any, Any]
TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13, "int32": 0.0, "int64": 0.0}

PLAIN = [helper.make_node("MatMul", ["a", "b"], ["y"])]


def transposed(name: str, rank: int = 2) -> list[NodeProto]:
    """The product with operand `name` transposed in front."""
    transpose = helper.make_node("Transpose", [name], ["t"], perm=[*range(rank - 2), rank - 1, rank - 2])
    return [transpose, helper.make_node("MatMul", ["t" if n == name else n for n in "ab"], ["y"])]


FORMS: dict[str, tuple[list[NodeProto], tuple[int, ...], tuple[int, ...]]] = {
    "matrices": (PLAIN, (24, 70), (70, 33)),
    "vector by matrix": (PLAIN, (70,), (70, 33)),
    "matrix by vector": (PLAIN, (24, 70), (70,)),
    "vectors": (PLAIN, (70,), (70,)),
    "row": (PLAIN, (1, 70), (70, 33)),
    "few rows": (PLAIN, (3, 70), (70, 33)),
    "column": (PLAIN, (24, 70), (70, 1)),
    "many rows by a matrix": (PLAIN, (2, 3, 24, 70), (70, 33)),
    "many matrices": (PLAIN, (3, 24, 70), (3, 70, 33)),
    "a matrix by many": (PLAIN, (24, 70), (3, 70, 33)),
    "many rows": (PLAIN, (3, 1, 70), (3, 70, 33)),
    "one panel": (PLAIN, (24, 70), (70, 16)),
    "whole panels": (PLAIN, (40, 70), (70, 64)),
    "right transposed": (transposed("b"), (24, 70), (33, 70)),
    "row by transposed": (transposed("b"), (1, 70), (33, 70)),
    "row by transposed, few columns": (transposed("b"), (1, 70), (5, 70)),
    "row by transposed, short": (transposed("b"), (1, 7), (33, 7)),
    "few rows by transposed": (transposed("b"), (3, 70), (33, 70)),
    "many few rows by transposed": (transposed("b", 3), (5, 2, 70), (5, 33, 70)),
    "left transposed": (transposed("a"), (70, 24), (70, 33)),
    "left transposed, column": (transposed("a"), (70, 24), (70, 1)),
    "many left transposed": (transposed("a", 3), (5, 70, 24), (5, 70, 33)),
    "no rows": (PLAIN, (0, 70), (70, 33)),
    "no steps": (PLAIN, (4, 0), (0, 33)),
}


def model(
    nodes: Sequence[NodeProto], data: Mapping[str, Array], dynamic_sizes: Mapping[str, Sequence[Any]], constant: str
) -> ModelProto:
    """A graph of y; operands named in `constant` are its weights."""
    kind = helper.np_dtype_to_tensor_dtype(next(iter(data.values())).dtype)
    values = [(name, dynamic_sizes.get(name, x.shape)) for name, x in data.items() if name not in constant]
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in values]
    weights = [numpy_helper.from_array(data[name], name) for name in constant]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", kind, None)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def computed(
    nodes: Sequence[NodeProto], data: Mapping[str, Array], dynamic_sizes: Mapping[str, Sequence[Any]], constant: str
) -> Array:
    """The output of the compiled graph."""
    mod, params = from_onnx(model(nodes, data, dynamic_sizes, constant))
    lib = relay.build(mod, params=params)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    return executor(*[x for name, x in data.items() if name not in constant])[0].numpy()


def operands(dtype: str, **shapes: tuple[int, ...]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    if dtype.startswith("int"):
        return {name: random.integers(-9, 9, shape).astype(dtype) for name, shape in shapes.items()}
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def assert_product(got: Array, expected: Array, dtype: str) -> None:
    assert got.dtype == dtype and got.shape == expected.shape
    most = TOLERANCE[dtype] * float(np.abs(expected).max(initial=0))
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=0, atol=most)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
def test_products_in_all_forms(form: str, dtype: str):
    nodes, left, right = FORMS[form]
    data = operands(dtype, a=left, b=right)
    transposed_operand = nodes[0].input[0] if len(nodes) > 1 else ""
    wide = np.longdouble if dtype == "float64" else np.float64
    a, b = [np.swapaxes(x, -1, -2) if name == transposed_operand else x for name, x in data.items()]
    expected = np.matmul(a.astype(wide), b.astype(wide))
    assert_product(computed(nodes, data, {}, ""), expected, dtype)
    if dtype in ("float32", "float16") and 0 not in (*left, *right):
        assert_product(computed(nodes, data, {}, "b"), expected, dtype)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("transposed_operand", ["", "a", "b", "ab"])
def test_general_products(transposed_operand: str, known: bool):
    trans_a, trans_b = int("a" in transposed_operand), int("b" in transposed_operand)
    data = operands("float32", a=(70, 24) if trans_a else (24, 70), b=(33, 70) if trans_b else (70, 33), c=(33,))
    nodes = [
        helper.make_node("Gemm", ["a", "b", "c"], ["z"], transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    sizes = {"a": ("k", "n") if trans_a else ("n", "k"), "b": ("m", "k") if trans_b else ("k", "m"), "c": ("m",)}
    a, b = [data[n].T if t else data[n] for n, t in (("a", trans_a), ("b", trans_b))]
    expected = np.maximum(0.5 * (a.astype(np.float64) @ b) + 2 * data["c"].astype(np.float64), 0)
    assert_product(computed(nodes, data, {} if known else sizes, ""), expected, "float32")
    if known:
        assert_product(computed(nodes, data, {}, "bc"), expected, "float32")


OPEN: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, tuple[str | int, ...]]]] = {
    "all": ((24, 70), (70, 33), {"a": ("n", "k"), "b": ("k", "m")}),
    "rows": ((24, 70), (70, 33), {"a": ("n", 70)}),
    "a single row": ((1, 70), (70, 33), {"a": ("n", 70)}),
    "columns": ((24, 70), (70, 33), {"b": (70, "m")}),
    "columns of a row": ((1, 70), (70, 33), {"b": (70, "m")}),
    "vector": ((70,), (70, 33), {"a": ("k",), "b": ("k", "m")}),
    "matrix by vector": ((24, 70), (70,), {"a": ("n", "k"), "b": ("k",)}),
    "column": ((24, 70), (70, 1), {"a": ("n", "k"), "b": ("k", 1)}),
    "rows of many": ((2, 24, 70), (70, 33), {"a": ("b", "n", 70)}),
    "many": ((2, 24, 70), (2, 70, 33), {"a": ("b", "n", "k"), "b": ("b", "k", "m")}),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", OPEN)
def test_products_of_dynamic_sizes(case: str, dtype: str):
    left, right, sizes = OPEN[case]
    data = operands(dtype, a=left, b=right)
    expected = np.matmul(data["a"].astype(np.float64), data["b"].astype(np.float64))
    assert_product(computed(PLAIN, data, sizes, ""), expected, dtype)


def test_products_of_bytes_are_exact():
    random = np.random.default_rng(0)
    data = {name: random.integers(0, 255, s).astype(np.uint8) for name, s in (("a", (24, 70)), ("b", (70, 33)))}
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["y"])]
    exact = data["a"].astype(np.int32) @ data["b"].astype(np.int32)
    for constant in ("", "b"):
        proto = model(nodes, data, {}, constant)
        proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(np.int32))
        mod, params = from_onnx(proto)
        lib = relay.build(mod, params=params)
        executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
        np.testing.assert_array_equal(executor(*[x for n, x in data.items() if n not in constant])[0].numpy(), exact)


def shaped_at_run_time(kind: str, depth: int) -> tuple[ModelProto, dict[str, Array]]:
    """A product with weights of data whose columns or channels are a product of sizes that an input gives."""
    random, node, part = np.random.default_rng(depth), helper.make_node, 2 if depth % 2 == 0 else 3
    images, floats = kind.startswith("images"), random.standard_normal((5, depth, 9, 9)).astype(np.float32)
    filters, codes = random.standard_normal((32, depth, 3, 3)), random.integers(-100, 100, (32, depth, 3, 3), np.int8)
    blocks = -(-depth // 32)
    constants: dict[str, Array] = {"zero": np.array(7, np.uint8), "rows": np.array([0, -1, 9, 9])}
    constants |= {"scales": random.random((32, blocks), np.float32), "whole": random.random((32, 1), np.float32)}
    match kind:
        case "floats" | "images":
            constants["w"] = filters.astype(np.float32) if images else filters[:, :, 0, 0].T.astype(np.float32)
            nodes = [node("Conv" if images else "MatMul", ["a", "w"], ["y"])]
        case "bytes" | "images of bytes":
            constants["w"] = codes if images else codes[:, :, 0, 0].T.copy()
            nodes = [node("ConvInteger" if images else "MatMulInteger", ["a", "w", "zero"], ["y"])]
        case "quantised at run time":
            constants["w"] = codes[:, :, 0, 0].T.copy()
            nodes = [node("DynamicQuantizeLinear", ["a"], ["q", "s", "z"]),
                     node("MatMulInteger", ["q", "w", "z"], ["y"])]  # fmt: skip
        case "4 bits":
            constants["w"] = random.integers(0, 256, (32, blocks, 16), np.uint8)
            how = {"K": depth, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": 4}
            nodes = [node("MatMulNBits", ["a", "w", "scales"], ["y"], domain="com.microsoft", **how)]
        case _:
            constants["w"] = codes[:, :, 0, 0]
            nodes = [node("DequantizeLinear", ["w", "scales"], ["r"], axis=1, block_size=32),
                     node("Transpose", ["r"], ["t"]), node("MatMul", ["a", "t"], ["y"])]  # fmt: skip
    x = floats if images else floats[:, :, 0, 0].copy()
    x = np.abs(x * 50).astype(np.uint8) if "bytes" in kind else x
    rest = (9, 9) if images else ()
    data = {"x": x, "shape": np.array([5, depth // part, part, *rest])}
    first = [node("Reshape", ["x", "shape"], ["parts"]),
             node("Reshape", ["parts", "rows"], ["a"]) if images else node("Flatten", ["parts"], ["a"])]  # fmt: skip
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
              for name, value in data.items()]  # fmt: skip
    used = {name for n in (*first, *nodes) for name in n.input}
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used]
    graph = helper.make_graph([*first, *nodes], "g", inputs, [helper.make_empty_tensor_value_info("y")], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), data


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=znver4", "llvm -mcpu=sapphirerapids"])
@pytest.mark.parametrize("depth", [64, 63])
@pytest.mark.parametrize("kind", [
    "floats", "bytes", "quantised at run time", "images", "images of bytes", "4 bits", "blocks",
])  # fmt: skip
def test_depths_that_only_the_weights_tell(kind: str, depth: int, target: str, request: pytest.FixtureRequest):
    """Products of words of 4 bytes or 2 bfloat16 and of packed weights, which need the depth as a number."""
    if target != "llvm":
        request.getfixturevalue("emulated_processors")
    made, data = shaped_at_run_time(kind, depth)
    results: list[Array] = []
    for constants in ({}, {"shape": data["shape"]}):
        mod, params = from_onnx(made, constants=constants)
        with PassContext(config={"relay.ToMixedPrecision.dtype": "bfloat16"}):
            lib = relay.build(mod, target, params)
        feeds = {name: value for name, value in data.items() if name not in constants}
        results.append(np.asarray(graph_executor.GraphModule(lib["default"](device("cpu", 0))).infer(feeds)[0]))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5 * float(np.abs(results[1]).max()))
