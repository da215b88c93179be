"""Scans without state changes are vectorised, others are loops."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

RNG = np.random.default_rng(6)
POINTS = RNG.standard_normal((40, 5), dtype=np.float32)


def model(nodes, outputs, scanned=POINTS, **attrs):
    """A Scan over `scanned`, its state x [n, 5]; its body makes "next" of "x", and what is stacked of "x" and "p"."""
    empty = helper.make_empty_tensor_value_info
    axis = numpy_helper.from_array(np.array([1]), "axis")
    body = helper.make_graph(nodes, "body", [empty("x"), empty("p")], [empty("next"), *map(empty, outputs)], [axis])
    names = [f"stack{k}" for k in range(len(outputs))]
    scan = helper.make_node("Scan", ["state", "scanned"], ["last", *names], body=body, num_scan_inputs=1, **attrs)
    graph = helper.make_graph(
        [scan], "scan", [helper.make_tensor_value_info("state", 1, ["n", 5])],
        [helper.make_tensor_value_info(name, 1, None) for name in ["last", *names]],
        [numpy_helper.from_array(scanned, "scanned")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def run(mod, x):
    executor = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))
    executor.set_input(0, x)
    executor.run()
    return [executor.get_output(k).numpy() for k in range(executor.get_num_outputs())]


KEEP = helper.make_node("Identity", ["x"], ["next"])
DISTANCES = [
    KEEP,
    helper.make_node("Sub", ["x", "p"], ["d"]),
    helper.make_node("ReduceSumSquare", ["d", "axis"], ["r"], keepdims=0),
]


@pytest.mark.parametrize("how", [
    {}, {"scan_input_axes": [1]}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]},
    {"scan_output_axes": [1]},
])  # fmt: skip
def test_distances_of_pairs(how):
    mod, _ = from_onnx(model(DISTANCES, ["r"], POINTS.T if "scan_input_axes" in how else POINTS, **how))
    assert "control.loop" not in str(mod)
    for n in (1, 7):
        x = RNG.standard_normal((n, 5), dtype=np.float32)
        expected = ((POINTS[:, None] - x) ** 2).sum(2)
        if "scan_input_directions" in how or "scan_output_directions" in how:
            expected = expected[::-1]
        last, found = run(mod, x)
        np.testing.assert_array_equal(last, x)
        np.testing.assert_allclose(found, expected.T if "scan_output_axes" in how else expected, rtol=1e-5)


def test_loop_invariant_values_are_broadcast():
    mod, _ = from_onnx(model([KEEP, helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Neg", ["p"], ["m"])],
                             ["e", "m"]))  # fmt: skip
    x = RNG.standard_normal((3, 5), dtype=np.float32)
    _, same, negative = run(mod, x)
    np.testing.assert_allclose(same, np.broadcast_to(np.exp(x), (40, 3, 5)), rtol=1e-5)
    np.testing.assert_array_equal(negative, -POINTS)


@pytest.mark.parametrize("nodes", [
    [helper.make_node("Add", ["x", "p"], ["next"]), helper.make_node("Identity", ["next"], ["r"])],
    [KEEP, helper.make_node("Sub", ["x", "p"], ["d"]), helper.make_node("CumSum", ["d", "axis"], ["r"])],
])  # fmt: skip
def test_other_scans_are_loops(nodes):
    mod, _ = from_onnx(model(nodes, ["r"]))
    assert "control.loop" in str(mod)
    x = RNG.standard_normal((2, 5), dtype=np.float32)
    sums = x + np.cumsum(POINTS, 0)[:, None]
    expected = sums if nodes[0] is not KEEP else np.cumsum(x - POINTS[:, None], 2)
    np.testing.assert_allclose(run(mod, x)[1], expected, rtol=1e-4, atol=1e-5)
