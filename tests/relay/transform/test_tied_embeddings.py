"""Tied embeddings: tables whose rows are looked up, and that are weights of a product as well, are stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend import Target
from relayc.backend.runtime import cpu, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay import Expr, Function, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import PackWeights

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")
ROWS, DEPTH = 100, 12
TABLE = np.random.default_rng(0).standard_normal((ROWS, DEPTH)).astype(np.float32)


def tied(table: Expr, weight: Expr, **attrs: Any) -> tuple[Expr, Expr]:
    """Some rows of a table, and their products with a weight, unless they have another width."""
    ids = var("ids", (1, 7), "int64")
    return ids, nn.dense(op.tanh(op.take(table, ids, **{"axis": 0, **attrs})), weight)


def test_rows_are_looked_up_in_the_panels_of_a_product(transformed, operators):
    table = const(TABLE)
    ids, logits = tied(table, table)
    after = transformed(Function((ids,), logits), PackWeights(HASWELL))
    assert operators(after) == {"nn.take_from_panels": 1, "tanh": 1, "nn.dense_packed": 1}


def test_two_constants_of_the_same_memory_are_the_same_table(transformed, operators):
    ids, logits = tied(const(TABLE), const(TABLE.T.T))
    after = transformed(Function((ids,), logits), PackWeights(HASWELL))
    assert operators(after)["nn.take_from_panels"] == 1


def test_a_table_of_its_own_stays_as_it_is(transformed, operators):
    ids, logits = tied(const(TABLE), const(TABLE.copy()))
    assert operators(transformed(Function((ids,), logits), PackWeights(HASWELL)))["take"] == 1


def test_a_table_with_other_uses_is_looked_up_too(transformed, operators):
    """Panels would save nothing."""
    table, x = const(TABLE), var("x", (ROWS, DEPTH))
    ids, logits = tied(table, table)
    both = relay.Tuple((logits, op.add(x, table)))
    assert operators(transformed(Function((ids, x), both), PackWeights(HASWELL)))["take"] == 1


def test_columns_are_looked_up_in_the_table(transformed, operators):
    square = const(TABLE[:DEPTH])
    ids = var("ids", (3,), "int64")
    logits = nn.dense(op.transpose(op.take(square, ids, axis=1)), square)
    assert operators(transformed(Function((ids,), logits), PackWeights(HASWELL)))["take"] == 1


def model(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Gather, Tanh and a MatMul with the transposed table, as language models have them."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Tanh", ["rows"], ["hidden"]),
        helper.make_node("Transpose", ["table"], ["table_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "table_t"], ["logits"]),
    ]
    table = numpy_helper.from_array(TABLE.astype(helper.tensor_dtype_to_np_dtype(dtype)), "table")
    graph = helper.make_graph(
        nodes, "tied", [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 7])],
        [helper.make_tensor_value_info("logits", dtype, [1, 7, ROWS])], [table],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_model_stores_its_tied_table_once(dtype: int):
    module, params = from_onnx(model(dtype))
    lib = relay.build(module, Target("llvm"), params=params)
    stored = sum(p.nbytes for p in lib.params.values())
    one = ROWS * DEPTH * helper.tensor_dtype_to_np_dtype(dtype).itemsize
    assert one <= stored < 1.4 * one  # its last panel is padded

    ids = np.array([[0, 99, -1, -100, 5, 50, 98]])
    executor = graph_executor.GraphModule(lib["default"](cpu(0)))
    executor.set_input("ids", ids)
    executor.run()
    expected = np.tanh(TABLE[ids]) @ TABLE.T
    tolerance = 1e-5 if dtype == TensorProto.FLOAT else 2e-2
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, tolerance, tolerance)
