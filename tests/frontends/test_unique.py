"""Unique: elements that no order of numbers holds."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

NAN = float("nan")


def distinct(x: np.ndarray, **attrs: int) -> list[np.ndarray]:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node("Unique", ["x"], ["y", "first", "inverse", "counts"], **attrs)
    outputs = [helper.make_tensor_value_info(name, 0, None) for name in node.output]
    graph = helper.make_graph([node], "unique", [helper.make_tensor_value_info("x", kind, x.shape)], outputs)
    module, params = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    executor = graph_executor.GraphModule(relay.build(module, params=params)["default"](device("cpu")))
    return [y.numpy() for y in executor(x)]


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("values", [[1, NAN, 2, NAN, 1, 0], [NAN, NAN], [3, NAN, 1], [NAN, -np.inf, np.inf]])
def test_nans_are_one_element_behind_all_others(values: list[float], kind: str, in_order: int) -> None:
    x = np.array(values, kind)
    expected, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.arange(len(expected)) if in_order else np.argsort(first)
    for attrs in ({}, {"axis": 0}):
        found = distinct(x, sorted=in_order, **attrs)
        np.testing.assert_array_equal(found[0], expected[order])
        np.testing.assert_array_equal(found[1], first[order])
        np.testing.assert_array_equal(found[2], np.argsort(order)[inverse])
        np.testing.assert_array_equal(found[3], counts[order])


def test_rows_that_differ_in_a_nan() -> None:
    x = np.array([[NAN, 1], [0, NAN], [0, 2], [NAN, 1], [NAN, 0]], np.float32)
    found = distinct(x, axis=0)
    np.testing.assert_array_equal(found[0], [[0, 2], [0, NAN], [NAN, 0], [NAN, 1]])
    np.testing.assert_array_equal(found[2], [3, 1, 0, 3, 2])
    np.testing.assert_array_equal(found[3], [1, 1, 1, 2])
