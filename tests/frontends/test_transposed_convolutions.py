"""ConvTranspose of all kinds, compiled, against its definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 48, 9, 7), (48, 32, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((2, 32, 9, 7), (32, 20, 3, 3), {"strides": [2, 2], "pads": [1, 0, 0, 1], "dilations": [2, 2]}),
    ((1, 32, 6, 7), (32, 16, 3, 3), {"strides": [3, 3], "pads": [1, 1, 1, 1], "dilations": [2, 2]}),
    ((1, 32, 9, 8), (32, 16, 3, 3), {"dilations": [2, 3], "pads": [2, 1, 2, 1]}),
    ((1, 64, 8, 9), (64, 16, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 2}),
    ((1, 64, 5, 6), (64, 4, 3, 3), {"strides": [2, 2], "group": 16}),
    ((1, 33, 8, 9), (33, 1, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 33}),
    ((1, 40, 8, 9), (40, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 24, 4, 5), (24, 21, 16, 16), {"strides": [8, 8], "pads": [4, 4, 4, 4]}),
    ((2, 40, 50), (40, 24, 5), {"strides": [3], "pads": [2, 1]}),
    ((1, 16, 3, 4, 5), (16, 16, 3, 3, 3), {"strides": [2, 2, 2], "pads": [1, 1, 1, 0, 1, 1]}),
]


def transposed(x: np.ndarray, w: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """The definition in float64: every element is scattered over its taps."""
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    strides, dilations = [attributes.get(name, [1] * rank) for name in ("strides", "dilations")]
    pads, grown = attributes.get("pads", [0] * 2 * rank), attributes.get("output_padding", [0] * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    full = [(n - 1) * s + r + g for n, s, r, g in zip(x.shape[2:], strides, spans, grown, strict=True)]
    inputs, outputs = len(w) // groups, w.shape[1]
    y = np.zeros((len(x), groups * outputs, *full))
    for place in np.ndindex(*x.shape[2:]):
        at = [slice(i * s, i * s + r, d) for i, s, r, d in zip(place, strides, spans, dilations, strict=True)]
        for g in range(groups):
            pixels = x[(slice(None), slice(g * inputs, (g + 1) * inputs), *place)].astype(np.float64)
            taps = np.tensordot(pixels, w[g * inputs : (g + 1) * inputs].astype(np.float64), 1)
            y[(slice(None), slice(g * outputs, (g + 1) * outputs), *at)] += taps
    return y[(..., *[slice(b, n - e) for b, n, e in zip(pads[:rank], full, pads[rank:], strict=True)])]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_transposed_convolutions(case: tuple[Any, ...], computed: bool) -> None:
    shape, weights, attributes = case
    random = np.random.default_rng(sum(shape))
    feeds = {"x": random.standard_normal(shape, np.float32), "w": random.standard_normal(weights, np.float32)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in feeds.items()]
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    constants = [] if computed else [numpy_helper.from_array(feeds["w"], "w")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs if computed else inputs[:1], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    mod, params = from_onnx(model)
    module = graph_executor.GraphModule(relay.build(mod, target="llvm", params=params)["default"](device("cpu", 0)), 2)
    passed = feeds if computed else {"x": feeds["x"]}
    for name, value in passed.items():
        module.set_input(name, value)
    module.run()
    exact = transposed(feeds["x"], feeds["w"], attributes)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(module.get_output(0).numpy(), exact, atol=2e-6 * scale)
