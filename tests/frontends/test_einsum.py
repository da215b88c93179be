"""Einsum: matrix products without unnecessary transposes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call
from relayc.relay.op.transform import Transpose

EXTENTS = {"t": 3, "k": 2, "i": 5, "h": 4}


def model(equation: str) -> ModelProto:
    operands, result = equation.split("->")
    names = [f"x{i}" for i, _ in enumerate(operands.split(","))]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [EXTENTS[label] for label in labels])
        for name, labels in zip(names, operands.split(","), strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [EXTENTS[label] for label in result])
    graph = helper.make_graph([helper.make_node("Einsum", names, ["y"], equation=equation)], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("equation", "moves"),
    [
        ("th,tkih->tki", 0),  # the weights of the experts that tokens chose
        ("tki,tkhi->tkh", 0),
        ("tkh,tk->th", 0),
        ("ht,hi->ti", 0),
        ("tih,hk->tik", 0),
        ("hit,hk->tik", 1),
        ("kti,kih->thk", 1),
    ],
)
def test_only_axes_that_are_in_no_order_of_a_product_are_moved(equation: str, moves: int) -> None:
    mod, params = from_onnx(model(equation))
    found = [e for e in evaluation_order(mod["main"].body) if isinstance(e, Call) and isinstance(e.op, Transpose)]
    assert len(found) == moves
    executor = graph_executor.GraphModule(relay.build(mod, params=params)["default"](device("cpu", 0)))
    random = np.random.default_rng(3)
    data = [random.standard_normal([EXTENTS[n] for n in labels], np.float32)
            for labels in equation.split("->")[0].split(",")]  # fmt: skip
    np.testing.assert_allclose(executor(*data)[0].numpy(), np.einsum(equation, *data), rtol=1e-4, atol=1e-5)
